import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Creates topics, writes with each codec, reads in a group that restarts; then transactions. */
public class Client {
    static final int COUNT = 10_000;
    static final int PARTITIONS = 3;
    static final long FIRST_MS = 1_700_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                String topic = "java-" + codec;
                var created = admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1)));
                check(created.config(topic).get().entries().size() > 0, "configs of a new topic");
                produce(bootstrap, topic, codec);
                int first = consume(bootstrap, topic, 1);
                int rest = consume(bootstrap, topic, COUNT - first);
                check(first + rest == COUNT, "read " + (first + rest));
            }
            administer(admin);
            transact(admin, bootstrap);
        }
    }

    static String key(int number) {
        return number % 50 == 1 ? null : "key-" + number;
    }

    static String value(int number) {
        return number % 50 == 2 ? null : "value-" + number;
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "linger.ms", 5);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < COUNT; number++) {
                var message =
                        new ProducerRecord<>(
                                topic, number % PARTITIONS, FIRST_MS + number, key(number), value(number));
                message.headers().add("number", Integer.toString(number).getBytes());
                sent.add(producer.send(message));
            }
        }
        for (int number = 0; number < COUNT; number++) {
            check(sent.get(number).get().offset() == number / PARTITIONS, "offset of " + number);
        }
    }

    static int consume(String bootstrap, String topic, int wanted) {
        Map<String, Object> settings =
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", "group-of-" + topic,
                        "auto.offset.reset", "earliest",
                        "enable.auto.commit", false);
        int found = 0;
        try (var consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int polls = 0; found < wanted && polls < 200; polls++) {
                for (var message : consumer.poll(Duration.ofMillis(200))) {
                    int number =
                            Integer.parseInt(new String(message.headers().lastHeader("number").value()));
                    check(message.offset() == number / PARTITIONS, "place of " + number);
                    check(message.timestamp() == FIRST_MS + number, "time of " + number);
                    check(Objects.equals(message.key(), key(number)), "key of " + number);
                    check(Objects.equals(message.value(), value(number)), "value of " + number);
                    found++;
                }
            }
            consumer.commitSync();
        }
        return found;
    }

    static void administer(Admin admin) throws Exception {
        var partition = new TopicPartition("java-none", 0);
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, "java-none");
        check(admin.describeConfigs(List.of(resource)).all().get().get(resource) != null, "configs");
        check(admin.describeTopics(List.of("java-none")).allTopicNames().get().size() == 1, "topics");
        var latest = admin.listOffsets(Map.of(partition, OffsetSpec.latest()));
        check(latest.partitionResult(partition).get().offset() == 3334, "latest offset");
        var groups = admin.listConsumerGroupOffsets("group-of-java-none");
        check(groups.partitionsToOffsetAndMetadata().get().get(partition).offset() == 3334, "commits");
        admin.deleteConsumerGroups(List.of("group-of-java-none")).all().get();
        admin.deleteTopics(List.of("java-none")).all().get();
    }

    /** Every other transaction is aborted; the epoch rises with each of them (KIP-890). */
    static void transact(Admin admin, String bootstrap) throws Exception {
        String topic = "java-transactions";
        var partition = new TopicPartition(topic, 0);
        Map<String, Object> settings =
                Map.of("bootstrap.servers", bootstrap, "transactional.id", topic);
        List<String> committed = new ArrayList<>();
        try (var producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, value(number * 10))).get();
                producer.sendOffsetsToTransaction(
                        Map.of(partition, new OffsetAndMetadata(number)),
                        new ConsumerGroupMetadata("group-of-" + topic));
                if (number % 2 == 0) {
                    producer.commitTransaction();
                    committed.add(value(number * 10));
                } else {
                    producer.abortTransaction();
                }
            }
        }
        var described = admin.describeTransactions(List.of(topic)).description(topic).get();
        check(described.producerEpoch() == 6, "epoch " + described.producerEpoch());
        Map<String, Object> reading =
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", "group-of-" + topic,
                        "isolation.level", "read_committed");
        List<String> found = new ArrayList<>();
        try (var consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            var stored = consumer.committed(Set.of(partition)).get(partition);
            check(stored.offset() == 4, "offset of the last committed transaction");
            consumer.seekToBeginning(List.of(partition));
            for (int polls = 0; found.size() < committed.size() && polls < 200; polls++) {
                consumer.poll(Duration.ofMillis(200)).forEach(message -> found.add(message.value()));
            }
        }
        check(found.equals(committed), "committed " + found);
    }

    static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new IllegalStateException("wrong: " + what);
        }
    }
}
