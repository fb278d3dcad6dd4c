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

// zstdWindow is how far back zstd looks for what repeats, and so what it holds:
// metrics repeat themselves within a few lines.
const zstdWindow = 128 << 10

// compressed returns what to write the answer to, and what ends it.
func compressed(w http.ResponseWriter, r *http.Request) (out io.Writer, end func() error) {
	encoding := chooseEncoding(r.Header.Get("Accept-Encoding"))
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

// chooseEncoding returns the encoding that a peer likes best: the smaller one of
// those that it likes the same, none when it likes that better.
func chooseEncoding(accept string) string {
	best, most := "", weight(accept, "identity")
	for _, encoding := range []string{"zstd", "gzip"} {
		if q := weight(accept, encoding); q > 0 && (q > most || q == most && best == "") {
			best, most = encoding, q
		}
	}
	return best
}

// weight returns how much an Accept-Encoding header likes an encoding: 0 for not
// at all, or when it does not say so.
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
