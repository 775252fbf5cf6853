package main

import (
	"context"
	"encoding/hex"
	"io"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of apache.rocketmq.v2.
const (
	responseMessage       = 2 // of ReceiveMessageResponse
	messageSystem         = 3 // of Message
	systemMessageID       = 3 // of SystemProperties
	systemReceiptHandle   = 12
	ackRequestEntries     = 3 // of AckMessageRequest
	ackEntryMessageID     = 1 // of AckMessageEntry
	ackEntryReceiptHandle = 2
)

// receiving calls ReceiveMessage in a closed loop and, if asked to, acknowledges what each call got
// before it makes the next one.
type receiving struct {
	channel    *grpc.ClientConn
	path       string
	request    []byte
	ackPath    string
	ackRequest []byte // without its entries

	messages atomic.Int64
	acks     atomic.Int64
	calls    atomic.Int64
	last     atomic.Int64 // when the last message came or was acknowledged, nanoseconds from the start

	guard    sync.Mutex
	firstAck []byte // the first answer to an ack, for the caller to judge
	others   int    // answers to acks that are of another kind
}

// run receives until there were enough messages or the time is over. The seconds are those until
// the last message or its ack: a call that finds nothing waits, and that is not counted.
func (r *receiving) run(inFlight, enough int, length time.Duration) map[string]any {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(length, cancel).Stop()
	started := time.Now()
	var group sync.WaitGroup
	latencies := make([][]float64, inFlight)
	for id := range inFlight {
		group.Go(func() {
			for number := 0; ctx.Err() == nil; number++ {
				begun := time.Now()
				// A deadline that leaves no time for a long poll is refused.
				call, done := context.WithTimeout(withMetadata(ctx, id, number), 30*time.Second)
				got, err := r.once(call)
				done()
				if err != nil && ctx.Err() == nil {
					log.Fatal(err)
				}
				if err == nil && got > 0 {
					latencies[id] = append(latencies[id], time.Since(begun).Seconds())
					r.last.Store(int64(time.Since(started)))
				}
				if r.messages.Load() >= int64(enough) {
					cancel()
				}
			}
		})
	}
	group.Wait()
	var all []float64
	for _, own := range latencies {
		all = append(all, own...)
	}
	return map[string]any{
		"messages":  r.messages.Load(),
		"acks":      r.acks.Load(),
		"calls":     r.calls.Load(),
		"others":    r.others,
		"seconds":   time.Duration(r.last.Load()).Seconds(),
		"p50_ms":    percentile(all, 50),
		"p99_ms":    percentile(all, 99),
		"first_hex": hex.EncodeToString(r.firstAck),
	}
}

// once makes one call, and one that acknowledges all it got; it returns how many messages that were.
func (r *receiving) once(ctx context.Context) (int, error) {
	stream, err := r.channel.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, r.path)
	if err != nil {
		return 0, err
	}
	if err := stream.SendMsg(r.request); err != nil {
		return 0, err
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	entries := r.ackRequest[:len(r.ackRequest):len(r.ackRequest)]
	got := 0
	for {
		var response []byte
		if err := stream.RecvMsg(&response); err == io.EOF {
			break
		} else if err != nil {
			return 0, err
		}
		if message := field(response, responseMessage); message != nil {
			got++
			if r.ackPath != "" {
				entries = appendEntry(entries, field(message, messageSystem))
			}
		}
	}
	if r.ackPath != "" && got > 0 {
		var response []byte
		if err := r.channel.Invoke(ctx, r.ackPath, entries, &response); err != nil {
			return 0, err
		}
		r.acks.Add(int64(got))
		r.judge(response)
	}
	r.calls.Add(1)
	r.messages.Add(int64(got))
	return got, nil
}

// judge keeps the first answer to an ack and counts those of another kind.
func (r *receiving) judge(response []byte) {
	r.guard.Lock()
	defer r.guard.Unlock()
	if r.firstAck == nil {
		r.firstAck = response
	} else if !sameStatus(r.firstAck, response) {
		r.others++
	}
}

// appendEntry adds the entry that acknowledges a message of these system properties.
func appendEntry(request, system []byte) []byte {
	var entry []byte
	entry = protowire.AppendTag(entry, ackEntryMessageID, protowire.BytesType)
	entry = protowire.AppendBytes(entry, field(system, systemMessageID))
	entry = protowire.AppendTag(entry, ackEntryReceiptHandle, protowire.BytesType)
	entry = protowire.AppendBytes(entry, field(system, systemReceiptHandle))
	request = protowire.AppendTag(request, ackRequestEntries, protowire.BytesType)
	return protowire.AppendBytes(request, entry)
}

// field returns the last value of a length-delimited field, nil if there is none.
func field(message []byte, wanted protowire.Number) []byte {
	var found []byte
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			log.Fatal("an answer that is no protobuf message")
		}
		message = message[length:]
		if number == wanted && kind == protowire.BytesType {
			found, _ = protowire.ConsumeBytes(message)
		}
		if length = protowire.ConsumeFieldValue(number, kind, message); length < 0 {
			log.Fatal("an answer that is no protobuf message")
		}
		message = message[length:]
	}
	return found
}
