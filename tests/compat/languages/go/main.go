// Writes 10,000 messages with each codec and reads them in a group that restarts.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	count      = 10000
	partitions = 3
	firstMs    = 1700000000000
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func open(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(os.Args[1]))...)
	check(err)
	return client
}

func value(number int) []byte {
	if number%50 == 1 {
		return nil
	}
	return []byte("value-" + strconv.Itoa(number))
}

func produce(ctx context.Context, topic string, codec kgo.CompressionCodec) {
	producer := open(
		kgo.ProducerBatchCompression(codec),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.AllowAutoTopicCreation(),
	)
	defer producer.Close()
	var messages []*kgo.Record
	for number := range count {
		header := kgo.RecordHeader{Key: "number", Value: []byte(strconv.Itoa(number))}
		messages = append(messages, &kgo.Record{
			Topic:     topic,
			Partition: int32(number % partitions),
			Timestamp: time.UnixMilli(firstMs + int64(number)),
			Key:       []byte("key"),
			Value:     value(number),
			Headers:   []kgo.RecordHeader{header},
		})
	}
	check(producer.ProduceSync(ctx, messages...).FirstErr())
}

func checkMessage(message *kgo.Record) {
	number, err := strconv.Atoi(string(message.Headers[0].Value))
	check(err)
	wanted := value(number)
	if message.Offset != int64(number/partitions) ||
		message.Timestamp.UnixMilli() != firstMs+int64(number) ||
		(wanted == nil) != (message.Value == nil) ||
		string(wanted) != string(message.Value) {
		check(fmt.Errorf("message %d is wrong: %v", number, message))
	}
}

func consume(ctx context.Context, topic string, wanted int) int {
	consumer := open(
		kgo.ConsumerGroup("group-of-"+topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	defer consumer.Close()
	found := 0
	for found < wanted {
		fetched := consumer.PollRecords(ctx, 3000)
		check(fetched.Err())
		fetched.EachRecord(checkMessage)
		found += fetched.NumRecords()
	}
	check(consumer.CommitUncommittedOffsets(ctx))
	return found
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for name, codec := range map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	} {
		topic := "go-" + name
		produce(ctx, topic, codec)
		first := consume(ctx, topic, 1)
		if rest := consume(ctx, topic, count-first); first+rest != count {
			check(fmt.Errorf("%s: %d of %d", topic, first+rest, count))
		}
	}
}
