import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Creates topics, writes 10,000 messages with each codec, reads them in a group that restarts. */
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

    static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new IllegalStateException("wrong: " + what);
        }
    }
}
