// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/testing/protocmp"
)

const (
	acceptText  = "text/plain"
	acceptOM    = "application/openmetrics-text;version=1.0.0"
	acceptProto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// source is the response of a source.
type source struct{ contentType, body string }

// merge merges sources for a scraper.
func merge(t testing.TB, accept string, sources ...source) string {
	t.Helper()
	var out bytes.Buffer
	m := NewMerger(&out, Negotiate(http.Header{"Accept": {accept}}))
	for _, s := range sources {
		if err := m.Copy(strings.NewReader(s.body), s.contentType); err != nil {
			t.Fatalf("%s: %v", s.contentType, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestNegotiate(t *testing.T) {
	t.Parallel()
	const prometheus3 = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7," +
		"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
	for accept, want := range map[string]struct {
		kind kind
		asks string
	}{
		"":                              {text, "text/plain;version=0.0.4"},
		"text/html":                     {text, "text/plain;version=0.0.4"},
		"*/*":                           {text, "text/plain;version=0.0.4"},
		acceptOM:                        {openMetrics, "application/openmetrics-text"},
		"application/openmetrics-text":  {openMetrics, "application/openmetrics-text"},
		prometheus3:                     {protobuf, "application/vnd.google.protobuf"},
		"text/plain;version=0.0.4;q=.3": {text, "text/plain;version=0.0.4"},
	} {
		f := Negotiate(http.Header{"Accept": {accept}})
		if f.kind != want.kind || !strings.HasPrefix(f.Accept(), want.asks) {
			t.Errorf("Accept %q: got %+v, which requests %s", accept, f, f.Accept())
		}
	}
	utf8 := Negotiate(http.Header{"Accept": {"text/plain;version=0.0.4;escaping=allow-utf-8"}})
	if want := "text/plain;version=0.0.4;escaping=allow-utf-8;q=0.9,"; !strings.HasPrefix(utf8.Accept(), want) || !strings.Contains(utf8.ContentType(), "escaping=allow-utf-8") {
		t.Errorf("got format %s, which requests %s", utf8.ContentType(), utf8.Accept())
	}
}

const plainText = `# A comment.
# HELP requests_total All "requests" with \\ in them.
# TYPE requests_total counter
requests_total{path="/a b",code="200",}  5 1700000000123
requests_total{path="}{ # \" x"} 1
# TYPE envoy_counter counter
envoy_counter{} 3

# TYPE took histogram
took_bucket{le="1"} 1
took_bucket{le="+Inf"} 2
took_sum 3.5
took_count 2
no_type NaN
# TYPE old untyped
old	-Inf
`

const openMetricsText = `# TYPE requests counter
# UNIT requests requests
# HELP requests All \"requests\".
requests_total{path="/"} 5 1700000000.123 # {trace_id="a # b"} 1 1700000000.1
requests_created{path="/"} 1700000000
# TYPE build info
build_info{version="1"} 1
# TYPE what unknown
what 2
# EOF
`

func TestBetweenTextFormats(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		accept, contentType, in, want string
	}{
		"text to text": {acceptText, "text/plain; version=0.0.4", plainText, `# HELP requests_total All "requests" with \\ in them.
# TYPE requests_total counter
requests_total{path="/a b",code="200",}  5 1700000000123
requests_total{path="}{ # \" x"} 1
# TYPE envoy_counter counter
envoy_counter{} 3
# TYPE took histogram
took_bucket{le="1"} 1
took_bucket{le="+Inf"} 2
took_sum 3.5
took_count 2
no_type NaN
# TYPE old untyped
old	-Inf
`},
		"text to openmetrics": {acceptOM, "", plainText, `# TYPE requests counter
# HELP requests All \"requests\" with \\ in them.
requests_total{path="/a b",code="200"} 5 1700000000.123
requests_total{path="}{ # \" x"} 1
# TYPE envoy_counter unknown
envoy_counter{} 3
# TYPE took histogram
took_bucket{le="1"} 1
took_bucket{le="+Inf"} 2
took_sum 3.5
took_count 2
no_type NaN
# TYPE old unknown
old -Inf
# EOF
`},
		"openmetrics to text": {acceptText, "application/openmetrics-text; version=1.0.0", openMetricsText, `# HELP requests_total All "requests".
# TYPE requests_total counter
requests_total{path="/"} 5 1700000000123
requests_created{path="/"} 1700000000
# TYPE build_info gauge
build_info{version="1"} 1
# TYPE what untyped
what 2
`},
		"openmetrics to openmetrics": {acceptOM, "application/openmetrics-text; version=1.0.0", openMetricsText, strings.Replace(openMetricsText,
			"# UNIT requests requests\n# HELP requests All \\\"requests\\\".\n", "# UNIT requests requests\n# HELP requests All \\\"requests\\\".\n", 1)},
	} {
		if diff := cmp.Diff(c.want, merge(t, c.accept, source{c.contentType, c.in})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestClash checks that a family that occurs in several sources is described once, and that there
// is one end marker.
func TestClash(t *testing.T) {
	t.Parallel()
	const om = "application/openmetrics-text; version=1.0.0"
	a := source{om, "# TYPE up gauge\nup{from=\"a\"} 1\n# EOF\n"}
	b := source{"text/plain", "# HELP up Another.\n# TYPE up counter\nup{from=\"b\"} 1\n"}
	for accept, want := range map[string]string{
		acceptOM:   "# TYPE up gauge\nup{from=\"a\"} 1\nup{from=\"b\"} 1\nup{from=\"a\"} 1\n# EOF\n",
		acceptText: "# TYPE up gauge\nup{from=\"a\"} 1\nup{from=\"b\"} 1\nup{from=\"a\"} 1\n",
	} {
		if diff := cmp.Diff(want, merge(t, accept, a, b, a)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", accept, diff)
		}
	}
}

// native contains features that only protobuf supports.
func native(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	reg := prometheus.NewRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "native_seconds", NativeHistogramBucketFactor: 1.1, Buckets: []float64{1, 2}})
	reg.MustRegister(h)
	h.Observe(1.5)
	h.Observe(77)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func delimited(t *testing.T, families ...*dto.MetricFamily) string {
	t.Helper()
	var b bytes.Buffer
	for _, f := range families {
		if _, err := protodelim.MarshalTo(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestProtobuf(t *testing.T) {
	t.Parallel()
	families := native(t)
	var got []*dto.MetricFamily
	out := merge(t, acceptProto, source{"text/plain", plainText}, source{acceptProto, delimited(t, families...)}, source{acceptOM, openMetricsText})
	decoder := expfmt.NewDecoder(strings.NewReader(out), expfmt.NewFormat(expfmt.TypeProtoDelim))
	for {
		f := &dto.MetricFamily{}
		if err := decoder.Decode(f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, f)
	}
	var names []string
	for _, f := range got {
		names = append(names, f.GetName()+" "+f.GetType().String())
		if f.GetName() == "native_seconds" {
			if diff := cmp.Diff(families[0], f, protocmp.Transform()); diff != "" {
				t.Errorf("the native histogram (-want +got):\n%s", diff)
			}
		}
	}
	want := []string{
		"requests_total COUNTER", "envoy_counter COUNTER", "no_type UNTYPED", "took HISTOGRAM", "old UNTYPED", "native_seconds HISTOGRAM",
		"requests_created UNTYPED", "requests_total COUNTER", "build_info GAUGE", "what UNTYPED",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("families (-want +got):\n%s", diff)
	}
	for accept, want := range map[string]string{
		acceptText: "# TYPE native_seconds histogram\nnative_seconds_bucket{le=\"1.0\"} 0\n",
		acceptOM:   "# TYPE native_seconds histogram\nnative_seconds_bucket{le=\"1.0\"} 0\n",
	} {
		out := merge(t, accept, source{acceptProto, delimited(t, families...)})
		if out = strings.ReplaceAll(out, `le="1"`, `le="1.0"`); !strings.Contains(strings.Join(lines(out, "# HELP"), "\n"), want) {
			t.Errorf("%s:\n%s", accept, out)
		}
	}
}

// lines returns the lines that do not have the given prefix.
func lines(s, without string) (kept []string) {
	for line := range strings.SplitSeq(s, "\n") {
		if !strings.HasPrefix(line, without) {
			kept = append(kept, line)
		}
	}
	return kept
}

// TestLongHistogramInProtobuf checks that a histogram that spans several chunks remains complete.
func TestLongHistogramInProtobuf(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# TYPE took histogram\n")
	const series = 4000
	for i := range series {
		label := strconv.Itoa(i)
		for _, le := range []string{"1", "2", "+Inf"} {
			b.WriteString("took_bucket{s=\"" + label + "\",n=\"" + strings.Repeat("z", i%7) + "\",le=\"" + le + "\"} 1\n")
		}
		b.WriteString("took_sum{s=\"" + label + "\",n=\"" + strings.Repeat("z", i%7) + "\"} 1\ntook_count{s=\"" + label + "\",n=\"" + strings.Repeat("z", i%7) + "\"} 1\n")
	}
	decoder := expfmt.NewDecoder(strings.NewReader(merge(t, acceptProto, source{"", b.String()})), expfmt.NewFormat(expfmt.TypeProtoDelim))
	pieces := 0
	for {
		f := &dto.MetricFamily{}
		if err := decoder.Decode(f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pieces++
		for _, m := range f.GetMetric() {
			if n := len(m.GetHistogram().GetBucket()); f.GetType() != dto.MetricType_HISTOGRAM || n != 3 {
				t.Fatalf("got type %s with %d buckets, want a histogram with 3", f.GetType(), n)
			}
		}
	}
	if pieces < 3 {
		t.Errorf("%d pieces, want at least 3", pieces)
	}
}

// TestTruncatedSource checks that after a truncated source, the output contains only complete lines
// and families, or the error is ErrTorn.
func TestTruncatedSource(t *testing.T) {
	t.Parallel()
	gone := errors.New("reset")
	big := &dto.MetricFamily{Name: new(strings.Repeat("a", maxWhole+1))}
	for name, c := range map[string]struct {
		accept, contentType, in, want string
		torn                          bool
	}{
		"text":           {acceptText, "", "a 1\nb", "a 1\n", false},
		"comments":       {acceptText, "", "a 1\n# TYPE b gauge\nb", "a 1\n", false},
		"openmetrics":    {acceptOM, "", "a 1\nb", "a 1\n# EOF\n", false},
		"message":        {acceptProto, acceptProto, delimited(t, native(t)...)[:20], "", false},
		"large message":  {acceptProto, acceptProto, delimited(t, big)[:maxWhole], "", true},
		"message as om":  {acceptOM, acceptProto, delimited(t, big)[:maxWhole], "# EOF\n", false},
		"not a sample":   {acceptOM, "", "a 1\n<html>\n", "a 1\n# EOF\n", false},
		"not a sample 2": {acceptProto, "", "{\n", "", false},
	} {
		var out bytes.Buffer
		m := NewMerger(&out, Negotiate(http.Header{"Accept": {c.accept}}))
		err := m.Copy(io.MultiReader(iotest.OneByteReader(strings.NewReader(c.in)), iotest.ErrReader(gone)), c.contentType)
		if err == nil || errors.Is(err, ErrGone) || errors.Is(err, ErrTorn) != c.torn {
			t.Errorf("%s: Copy() = %v, want ErrTorn: %t", name, err, c.torn)
		}
		if c.torn {
			continue
		}
		if err := m.Close(); err != nil || out.String() != c.want {
			t.Errorf("%s: Close() = %v, output %q, want %q", name, err, out.String(), c.want)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestScraperGone(t *testing.T) {
	t.Parallel()
	for _, accept := range []string{acceptText, acceptOM, acceptProto} {
		m := NewMerger(brokenWriter{}, Negotiate(http.Header{"Accept": {accept}}))
		if err := m.Copy(strings.NewReader(strings.Repeat(plainText, 1000)), ""); !errors.Is(err, ErrGone) {
			t.Errorf("%s: Copy() = %v, want ErrGone", accept, err)
		}
	}
}

// long returns a long body of equal lines.
type long struct{ left int }

func (l *long) Read(b []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	l.left--
	return copy(b, "envoy_cluster_upstream_cx_total{cluster=\"a\"} 1\n"), nil
}

func TestStreamsLargeBodies(t *testing.T) {
	// Not parallel, because it measures allocations.
	const count = 200_000
	for accept, limit := range map[string]float64{acceptText: 20, acceptOM: 20} {
		allocated := testing.AllocsPerRun(1, func() {
			m := NewMerger(io.Discard, Negotiate(http.Header{"Accept": {accept}}))
			if err := m.Copy(&long{left: count}, ""); err != nil {
				t.Error(err)
			}
		})
		if allocated > limit+50 {
			t.Errorf("%s: %v allocations for %d lines: the body is not streamed", accept, allocated, count)
		}
	}
}

// FuzzMerge merges arbitrary responses for any scraper, and checks that it does not panic and that
// a following valid source is complete.
func FuzzMerge(f *testing.F) {
	f.Add(plainText, byte(0), byte(1))
	f.Add(openMetricsText, byte(1), byte(0))
	f.Add("\x06broken", byte(2), byte(0))
	types := []string{acceptText, acceptOM, acceptProto}
	f.Fuzz(func(t *testing.T, body string, from, to byte) {
		var out bytes.Buffer
		m := NewMerger(&out, Negotiate(http.Header{"Accept": {types[int(to)%len(types)]}}))
		err := m.Copy(strings.NewReader(body), types[int(from)%len(types)])
		if errors.Is(err, ErrTorn) || errors.Is(err, ErrGone) {
			return
		}
		before := out.Len()
		if err := m.Copy(strings.NewReader("last_one 1\n"), ""); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil || !strings.Contains(out.String()[min(before, out.Len()):], "last_one") {
			t.Errorf("got error %v, output %q", err, out.String())
		}
	})
}

// TestParsable checks that an independent parser accepts the generated text.
func TestParsable(t *testing.T) {
	t.Parallel()
	out := merge(t, acceptText, source{"", plainText}, source{acceptOM, openMetricsText}, source{acceptProto, delimited(t, native(t)...)})
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(out))
	if err != nil || len(families) != 9 {
		t.Errorf("got %d families, error %v; want 9:\n%s", len(families), err, out)
	}
}
