// Loadgen keeps a fixed number of gRPC calls in flight and prints how fast they were answered.
//
// It knows no broker. Without -receive the calls are unary: the request is bytes from a
// file, the same each time or, with -requests, each of many once, the method a path; the first answer
// is printed for the caller to judge, and those that begin otherwise are counted. With -receive they are calls of apache.rocketmq.v2's ReceiveMessage, see
// receive.go. The metadata is what official RocketMQ clients send, with a request id of its own for
// each call.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// statusBytes is how much of an answer tells whether it is of the same kind as the first: in the
// protocol's responses a status comes first, and its code first in that.
const statusBytes = 6

// rawCodec sends and receives bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(value.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	*(value.(*[]byte)) = data.Materialize()
	return nil
}

// withMetadata adds what a client sends along; id and number make the request id unique.
func withMetadata(ctx context.Context, id, number int) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"x-mq-client-id", "loadgen@1@0@abc",
		"x-mq-language", "GO",
		"x-mq-protocol", "v2",
		"x-mq-client-version", "5.1.4",
		"x-mq-namespace", "",
		"x-mq-date-time", "20261121T000000Z",
		"x-mq-request-id", fmt.Sprintf("%08x-0000-4000-8000-%012x", id, number),
		"authorization", "MQv2-HMAC-SHA1 Credential=bench, SignedHeaders=x-mq-date-time, "+
			"Signature=0102030405060708090A0B0C0D0E0F1011121314",
	)
}

// sent is what one sender saw.
type sent struct {
	latencies []float64
	first     []byte
	others    int // answers of another kind than the first
}

// once returns a function that gives each of the requests of a file once, and then none. In the file
// each comes after its length, 32 bits, big-endian.
func once(file []byte) func() []byte {
	var requests [][]byte
	for len(file) > 0 {
		end := 4 + binary.BigEndian.Uint32(file)
		requests = append(requests, file[4:end])
		file = file[end:]
	}
	var taken atomic.Int64
	return func() []byte {
		if number := int(taken.Add(1)) - 1; number < len(requests) {
			return requests[number]
		}
		return nil
	}
}

// sender runs a closed loop until the end, until it made its share of calls, or until there is no
// other request.
func sender(channel *grpc.ClientConn, path string, next func() []byte, id, calls int, end time.Time) (sent, error) {
	var result sent
	for number := 0; number < calls && time.Now().Before(end); number++ {
		request := next()
		if request == nil {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		started := time.Now()
		var response []byte
		err := channel.Invoke(withMetadata(ctx, id, number), path, request, &response)
		result.latencies = append(result.latencies, time.Since(started).Seconds())
		cancel()
		if err != nil {
			return result, err
		}
		if result.first == nil {
			result.first = response
		} else if !sameStatus(result.first, response) {
			result.others++
		}
	}
	return result, nil
}

func sameStatus(left, right []byte) bool {
	return bytes.Equal(left[:min(len(left), statusBytes)], right[:min(len(right), statusBytes)])
}

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:8081", "host:port, plaintext")
	path := flag.String("path", "", "/package.Service/Method")
	file := flag.String("request", "", "file with the request's bytes")
	manyFile := flag.String("requests", "", "file with requests, each made once, instead of one")
	inFlight := flag.Int("in-flight", 1, "calls in flight")
	seconds := flag.Float64("seconds", 3, "how long at most")
	calls := flag.Int("calls", 1<<30, "how many calls at most")
	messages := flag.Int("receive", 0, "receive so many messages at most")
	ackPath := flag.String("ack", "", "method that acknowledges what was received")
	ackFile := flag.String("ack-request", "", "file with the ack's bytes without its entries")
	flag.Parse()
	request, err := os.ReadFile(*file)
	if err != nil {
		log.Fatal(err)
	}
	channel, err := grpc.NewClient(*endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	length := time.Duration(*seconds * float64(time.Second))
	if *messages > 0 {
		run := receiving{channel: channel, path: *path, request: request, ackPath: *ackPath}
		if *ackPath != "" {
			if run.ackRequest, err = os.ReadFile(*ackFile); err != nil {
				log.Fatal(err)
			}
		}
		json.NewEncoder(os.Stdout).Encode(run.run(*inFlight, *messages, length))
		return
	}
	next := func() []byte { return request }
	if *manyFile != "" {
		many, err := os.ReadFile(*manyFile)
		if err != nil {
			log.Fatal(err)
		}
		next = once(many)
	}
	json.NewEncoder(os.Stdout).Encode(sending(channel, *path, next, *inFlight, *calls, length))
}

// sending runs the unary calls.
func sending(channel *grpc.ClientConn, path string, next func() []byte, inFlight, calls int, length time.Duration) map[string]any {
	started := time.Now()
	results := make([]sent, inFlight)
	var group sync.WaitGroup
	for id := range inFlight {
		share := calls / inFlight
		if id < calls%inFlight {
			share++
		}
		group.Go(func() {
			var failure error
			if results[id], failure = sender(channel, path, next, id, share, started.Add(length)); failure != nil {
				log.Fatal(failure)
			}
		})
	}
	group.Wait()
	elapsed := time.Since(started).Seconds()
	var latencies []float64
	others := 0
	for _, result := range results {
		latencies = append(latencies, result.latencies...)
		others += result.others
		if result.first != nil && !sameStatus(results[0].first, result.first) {
			others++
		}
	}
	return map[string]any{
		"calls":     len(latencies),
		"others":    others,
		"seconds":   elapsed,
		"p50_ms":    percentile(latencies, 50),
		"p99_ms":    percentile(latencies, 99),
		"first_hex": hex.EncodeToString(results[0].first),
	}
}

// percentile returns it in milliseconds of latencies in seconds.
func percentile(latencies []float64, percent int) float64 {
	if len(latencies) == 0 {
		return 0
	}
	slices.Sort(latencies)
	return 1000 * latencies[len(latencies)*percent/100]
}
