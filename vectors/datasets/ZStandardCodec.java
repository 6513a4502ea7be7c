// Stands in for Hadoop's class of this name, which needs a native library that no package has. Hadoop's writes one
// frame for each value or buffer (`finish` ends it, `resetState` begins the next), and so does this, with zstd-jni.

package org.apache.hadoop.io.compress;

import com.github.luben.zstd.ZstdOutputStreamNoFinalizer;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;

public class ZStandardCodec implements CompressionCodec {
    static class Output extends CompressionOutputStream {
        private final ZstdOutputStreamNoFinalizer frames;

        Output(OutputStream out) throws IOException {
            super(out);
            frames = new ZstdOutputStreamNoFinalizer(out, 3);
            frames.setCloseFrameOnFlush(true);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            frames.write(bytes, from, length);
        }

        @Override
        public void write(int b) throws IOException {
            frames.write(b);
        }

        @Override
        public void finish() throws IOException {
            frames.flush();
        }

        @Override
        public void flush() {}

        @Override
        public void resetState() {}
    }

    @Override
    public CompressionOutputStream createOutputStream(OutputStream out) throws IOException {
        return new Output(out);
    }

    @Override
    public CompressionOutputStream createOutputStream(OutputStream out, Compressor unused) throws IOException {
        return new Output(out);
    }

    @Override
    public Class<? extends Compressor> getCompressorType() {
        return null;
    }

    @Override
    public Compressor createCompressor() {
        return null;
    }

    @Override
    public CompressionInputStream createInputStream(InputStream in) {
        throw new UnsupportedOperationException();
    }

    @Override
    public CompressionInputStream createInputStream(InputStream in, Decompressor unused) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Class<? extends Decompressor> getDecompressorType() {
        return null;
    }

    @Override
    public Decompressor createDecompressor() {
        return null;
    }

    @Override
    public String getDefaultExtension() {
        return ".zst";
    }
}
