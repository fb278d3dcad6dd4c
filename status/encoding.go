// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// zstdWindow is the window of zstd, and so the memory that it needs, in bytes: metrics
// repeat themselves within a few lines.
const zstdWindow = 128 << 10

// compressed returns the writer for the answer to a peer that accepts encodings, and a function that
// ends it.
func compressed(w http.ResponseWriter, accept string) (out io.Writer, end func() error) {
	encoding := chooseEncoding(accept)
	var zipped io.WriteCloser
	switch encoding {
	case "zstd":
		// The options are valid. With one encoder at a time it has no goroutine.
		zipped, _ = zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))
	case "gzip":
		zipped, _ = gzip.NewWriterLevel(w, gzip.BestSpeed) // the level exists
	default:
		return w, func() error { return nil }
	}
	w.Header().Set("Content-Encoding", encoding)
	return zipped, zipped.Close
}

// chooseEncoding returns the encoding that a peer prefers: the smaller one if it
// prefers several equally, "" if it prefers no encoding.
func chooseEncoding(accept string) string {
	best, most := "", weight(accept, "identity")
	for _, encoding := range []string{"zstd", "gzip"} {
		if q := weight(accept, encoding); q > 0 && (q > most || q == most && best == "") {
			best, most = encoding, q
		}
	}
	return best
}

// weight returns the weight of an encoding in an Accept-Encoding header: 0 if it is
// not acceptable or not mentioned.
func weight(header, encoding string) float64 {
	for item := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(item, ";")
		if !strings.EqualFold(strings.TrimSpace(name), encoding) {
			continue
		}
		value, found := strings.CutPrefix(strings.ToLower(strings.ReplaceAll(params, " ", "")), "q=")
		if !found {
			return 1
		}
		q, err := strconv.ParseFloat(value, 64)
		if err != nil || !(q > 0 && q <= 1) { // the latter is false for what is not a number
			return 0
		}
		return q
	}
	return 0
}
