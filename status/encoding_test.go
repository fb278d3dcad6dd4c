// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
)

func TestChooseEncoding(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]string{
		"":                          "",
		"gzip":                      "gzip",
		"GZIP ; Q=0.5":              "gzip",
		"zstd":                      "zstd",
		"gzip, zstd":                "zstd",
		"gzip, deflate, br, zstd":   "zstd",
		"gzip;q=1, zstd;q=0.9":      "gzip",
		"gzip;q=0.8, zstd;q=0.9":    "zstd",
		"zstd;q=0, gzip;q=0.1":      "gzip",
		"zstd;q=0,gzip;q=0":         "",
		"gzip;q=0.5, identity":      "",
		"identity;q=0.5, gzip":      "gzip",
		"identity, gzip":            "gzip",
		"gzip;q=x":                  "",
		"gzip;q=2":                  "",
		"gzip;q=NaN":                "",
		"br":                        "",
		"*":                         "",
		"gzipped, zstandard, xgzip": "",
	} {
		if got := chooseEncoding(accept); got != want {
			t.Errorf("chooseEncoding(%q) = %q, want %q", accept, got, want)
		}
	}
}

// TestCompressedMetrics checks that compression does not change the metrics.
func TestCompressedMetrics(t *testing.T) {
	t.Parallel()
	long := "# TYPE app_lines_total counter\n" + strings.Repeat("app_lines_total{source=\"frontend\",destination=\"catalog\"} 12345\n", 20_000) // larger than any window or buffer
	_, address := serveMerged(t, text(envoyText), text(long))
	for encoding, open := range map[string]func(io.Reader) (io.Reader, error){
		"":     func(r io.Reader) (io.Reader, error) { return r, nil },
		"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"zstd": func(r io.Reader) (io.Reader, error) {
			d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
			if err != nil {
				return nil, err
			}
			return d.IOReadCloser(), nil
		},
	} {
		header := http.Header{"Accept-Encoding": {encoding}}
		code, body, got := do(t, http.MethodGet, address, "/metrics", header)
		if code != http.StatusOK || got.Get("Content-Encoding") != encoding || got.Get("Vary") != "Accept, Accept-Encoding" {
			t.Errorf("%q: got status %d, headers %v", encoding, code, got)
		}
		plain, err := open(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(plain)
		if err != nil || !strings.HasSuffix(string(all), envoyText+long) {
			t.Errorf("%q: got error %v, %d bytes", encoding, err, len(all))
		}
		if encoding != "" && len(body) > len(all)/10 {
			t.Errorf("%q: got %d compressed bytes of %d, want at most a tenth", encoding, len(body), len(all))
		}
	}
	_, plain := serve(t, func(c *Config) { c.Gatherer, c.PlainMetrics = prometheus.NewRegistry(), true })
	if code, _, got := do(t, http.MethodGet, plain, "/metrics", http.Header{"Accept-Encoding": {"gzip, zstd"}}); code != http.StatusOK || got.Get("Content-Encoding") != "" {
		t.Errorf("without compression: status %d, headers %v", code, got)
	}
}
