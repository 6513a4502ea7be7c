// Writes the SequenceFiles of this folder with Hadoop's own classes. How it is run: make.py.

import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.SequenceFile;
import org.apache.hadoop.io.SequenceFile.CompressionType;
import org.apache.hadoop.io.SequenceFile.Metadata;
import org.apache.hadoop.io.SequenceFile.Writer;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.io.Writable;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.util.ReflectionUtils;

public class Sequences {
    static final String[][] CODECS = {
        {"deflate", "org.apache.hadoop.io.compress.DefaultCodec"},
        {"gzip", "org.apache.hadoop.io.compress.GzipCodec"},
        {"bzip2", "org.apache.hadoop.io.compress.BZip2Codec"},
        {"snappy", "org.apache.hadoop.io.compress.SnappyCodec"},
        {"lz4", "org.apache.hadoop.io.compress.Lz4Codec"},
        {"zstd", "org.apache.hadoop.io.compress.ZStandardCodec"},
    };

    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem");
        // So that a file of some kilobytes has several blocks.
        conf.setInt("io.seqfile.compress.blocksize", 2000);
        String folder = args[0];
        one(conf, folder + "/none.seq", CompressionType.NONE, null, 60);
        for (String[] codec : CODECS) {
            Class<?> type = conf.getClassByName(codec[1]);
            CompressionCodec made = (CompressionCodec) ReflectionUtils.newInstance(type, conf);
            for (CompressionType kind : new CompressionType[] {CompressionType.RECORD, CompressionType.BLOCK}) {
                String name = kind.name().toLowerCase() + "-" + codec[0] + ".seq";
                one(conf, folder + "/" + name, kind, made, 60);
                one(conf, folder + "/small-" + name, kind, made, 3);
            }
        }
        texts(conf, folder + "/text.seq");
        raw(conf, folder + "/raw.seq");
        write(conf, folder + "/empty.seq", BytesWritable.class, BytesWritable.class, CompressionType.NONE, null).close();
        CompressionCodec deflate = new org.apache.hadoop.io.compress.DefaultCodec();
        ((org.apache.hadoop.io.compress.DefaultCodec) deflate).setConf(conf);
        write(conf, folder + "/empty-block.seq", Text.class, Text.class, CompressionType.BLOCK, deflate).close();
        if (args.length > 1) {
            large(conf, args[1], Long.parseLong(args[2]));
        }
    }

    static Writer write(Configuration conf, String path, Class<?> key, Class<?> value, CompressionType type,
            CompressionCodec codec) throws Exception {
        Metadata metadata = new Metadata();
        metadata.set(new Text("written by"), new Text("Sequences.java"));
        return SequenceFile.createWriter(conf, Writer.file(new Path("file://" + path)), Writer.keyClass(key),
            Writer.valueClass(value), Writer.compression(type, codec), Writer.metadata(metadata));
    }

    // What these hold is told again in the test that reads them: key-i, and i * i % 97 times "value i, ".
    static void one(Configuration conf, String path, CompressionType type, CompressionCodec codec, int count)
            throws Exception {
        Writer writer = write(conf, path, BytesWritable.class, BytesWritable.class, type, codec);
        for (int i = 0; i < count; i++) {
            String value = ("value " + i + ", ").repeat(i * i % 97);
            if (i == 30) {
                writer.sync();
            }
            writer.append(new BytesWritable(("key-" + i).getBytes("UTF-8")), new BytesWritable(value.getBytes("UTF-8")));
        }
        writer.close();
    }

    static void texts(Configuration conf, String path) throws Exception {
        Writer writer = write(conf, path, Text.class, Text.class, CompressionType.NONE, null);
        for (String key : new String[] {"", "é", "日本", "🜁"}) {
            writer.append(new Text(key), new Text(key.repeat(100)));
        }
        writer.close();
    }

    static void raw(Configuration conf, String path) throws Exception {
        Writer writer = write(conf, path, IntWritable.class, NullWritable.class, CompressionType.NONE, null);
        for (int i = -1; i < 2; i++) {
            writer.append(new IntWritable(i), NullWritable.get());
        }
        writer.close();
    }

    // For measuring: 16-byte keys, 100-byte values.
    static void large(Configuration conf, String path, long count) throws Exception {
        Writer writer = write(conf, path, BytesWritable.class, BytesWritable.class, CompressionType.NONE, null);
        Random random = new Random(1);
        byte[] value = new byte[100];
        for (long i = 0; i < count; i++) {
            random.nextBytes(value);
            Writable key = new BytesWritable(String.format("%016x", i * 0x9e3779b97f4a7c15L).getBytes("UTF-8"));
            writer.append(key, new BytesWritable(value));
        }
        writer.close();
    }
}
