// Loadgen keeps a fixed number of unary gRPC calls in flight and prints how fast they were answered.
//
// It knows no broker: the request is bytes from a file, the method a path, the answer is not looked
// into except that the first one is printed for the caller to judge. The connection's metadata is
// what official RocketMQ clients send, with a request id of its own for each call.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

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

// sender runs a closed loop until the end and returns the seconds of every call.
func sender(channel *grpc.ClientConn, path string, request []byte, id int, end time.Time) ([]float64, []byte, error) {
	var latencies []float64
	var first []byte
	for number := 0; time.Now().Before(end); number++ {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		ctx = metadata.AppendToOutgoingContext(ctx,
			"x-mq-client-id", "loadgen@1@0@abc",
			"x-mq-language", "GO",
			"x-mq-protocol", "v2",
			"x-mq-client-version", "5.1.4",
			"x-mq-namespace", "",
			"x-mq-date-time", "20261121T000000Z",
			"x-mq-request-id", fmt.Sprintf("%08x-0000-4000-8000-%012x", id, number),
		)
		started := time.Now()
		var response []byte
		err := channel.Invoke(ctx, path, request, &response)
		latencies = append(latencies, time.Since(started).Seconds())
		cancel()
		if err != nil {
			return latencies, first, err
		}
		if first == nil {
			first = response
		}
	}
	return latencies, first, nil
}

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:8081", "host:port, plaintext")
	path := flag.String("path", "", "/package.Service/Method")
	file := flag.String("request", "", "file with the request's bytes")
	inFlight := flag.Int("in-flight", 1, "calls in flight")
	seconds := flag.Float64("seconds", 3, "how long")
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

	started := time.Now()
	end := started.Add(time.Duration(*seconds * float64(time.Second)))
	results := make([][]float64, *inFlight)
	firsts := make([][]byte, *inFlight)
	var group sync.WaitGroup
	for id := range *inFlight {
		group.Add(1)
		go func() {
			defer group.Done()
			var failure error
			results[id], firsts[id], failure = sender(channel, *path, request, id, end)
			if failure != nil {
				log.Fatal(failure)
			}
		}()
	}
	group.Wait()
	elapsed := time.Since(started).Seconds()
	latencies := slices.Concat(results...)
	slices.Sort(latencies)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls":     len(latencies),
		"seconds":   elapsed,
		"p50_ms":    1000 * latencies[len(latencies)/2],
		"p99_ms":    1000 * latencies[len(latencies)*99/100],
		"first_hex": hex.EncodeToString(firsts[0]),
	})
}
