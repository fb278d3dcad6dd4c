// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

func TestReporting(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flush, eviction, buckets string
		want                     reporting
		interval                 time.Duration // eviction interval
		doubts                   []string      // part of each warning
	}{
		"nothing":                {interval: 10 * time.Minute},
		"flush":                  {flush: "10s", want: reporting{flush: 10 * time.Second}, interval: 10 * time.Minute},
		"eviction follows":       {flush: "7s", want: reporting{flush: 7 * time.Second}, interval: 595 * time.Second},
		"long flush":             {flush: "299s", want: reporting{flush: 299 * time.Second}, interval: 598 * time.Second},
		"eviction":               {eviction: "10s", want: reporting{eviction: 10 * time.Second}, interval: 10 * time.Second},
		"both":                   {flush: "250ms", eviction: "1.5s", want: reporting{flush: 250 * time.Millisecond, eviction: 1500 * time.Millisecond}, interval: 1500 * time.Millisecond},
		"no multiple":            {eviction: "11s", interval: 10 * time.Minute, doubts: []string{`statsEvictionInterval is ignored: it is "11s"; it must be a multiple of the flush interval, 5s, such as 10s`}},
		"no multiple of another": {flush: "20s", eviction: "10s", want: reporting{flush: 20 * time.Second}, interval: 10 * time.Minute, doubts: []string{"the flush interval, 20s, such as 40s"}},
		"zero":                   {flush: "0s", eviction: "0s", interval: 10 * time.Minute, doubts: []string{"statsFlushInterval is ignored", "statsEvictionInterval is ignored"}},
		"negative":               {flush: "-5s", eviction: "-5s", interval: 10 * time.Minute, doubts: []string{"statsFlushInterval", "statsEvictionInterval"}},
		"too long":               {flush: "5m", interval: 10 * time.Minute, doubts: []string{`it is "5m"; it must be a duration from 1ms to less than 5m0s, in whole milliseconds, such as 10s`}},
		"too fine":               {flush: "2500us", interval: 10 * time.Minute, doubts: []string{"whole milliseconds"}},
		"no unit":                {flush: "10", eviction: "10", interval: 10 * time.Minute, doubts: []string{"statsFlushInterval", "statsEvictionInterval"}},
		"buckets": {
			buckets:  `{"istio": [100, 1, 10.5], "cluster": [7]}`,
			want:     reporting{buckets: []histogram{{prefixMatch{"cluster"}, []float64{7}}, {prefixMatch{"istio"}, []float64{1, 10.5, 100}}}},
			interval: 10 * time.Minute,
		},
		"no prefixes":    {buckets: `{}`, interval: 10 * time.Minute},
		"no JSON":        {buckets: `{`, interval: 10 * time.Minute, doubts: []string{`statsHistogramBuckets is ignored: it is "{"; it must be a JSON object`}},
		"no object":      {buckets: `[1]`, interval: 10 * time.Minute, doubts: []string{"cannot unmarshal array"}},
		"text":           {buckets: `{"a": ["1"]}`, interval: 10 * time.Minute, doubts: []string{"cannot unmarshal string"}},
		"empty prefix":   {buckets: `{"": [1]}`, interval: 10 * time.Minute, doubts: []string{"a prefix is empty"}},
		"no bucket":      {buckets: `{"a": []}`, interval: 10 * time.Minute, doubts: []string{`"a" has no buckets`}},
		"zero bucket":    {buckets: `{"a": [1, 0]}`, interval: 10 * time.Minute, doubts: []string{`"a" has the bucket 0, which must be greater than 0`}},
		"bucket twice":   {buckets: `{"a": [1, 2, 1.0]}`, interval: 10 * time.Minute, doubts: []string{`"a" has a bucket twice`}},
		"infinite":       {buckets: `{"a": [1e999]}`, interval: 10 * time.Minute, doubts: []string{"cannot unmarshal number"}},
		"one of several": {buckets: `{"a": [1], "b": []}`, interval: 10 * time.Minute, doubts: []string{`"b" has no buckets`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			annotations := map[string]string{}
			for annotation, value := range map[string]string{annotationFlush: tc.flush, annotationEviction: tc.eviction, annotationBuckets: tc.buckets} {
				if value != "" {
					annotations[annotation] = value
				}
			}
			m := &node.Metadata{Annotations: annotations}
			got, _ := reportingOf(m)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(reporting{}, histogram{}, prefixMatch{})); diff != "" {
				t.Error(diff)
			}
			if interval := got.evictionInterval(); interval != tc.interval {
				t.Errorf("eviction interval %s, want %s", interval, tc.interval)
			}
			doubts := StatsDoubts(m)
			if len(doubts) != len(tc.doubts) {
				t.Fatalf("%q, want %q", doubts, tc.doubts)
			}
			for i, want := range tc.doubts {
				if !strings.Contains(doubts[i], want) {
					t.Errorf("%q, want %q", doubts[i], want)
				}
			}
		})
	}
}

// TestEnvoyRefusesReporting checks that Envoy refuses the values that the agent ignores.
func TestEnvoyRefusesReporting(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	if envoy == "" {
		t.Skip("no Envoy found: run `make envoy` or set ENVOY")
	}
	for _, doc := range []string{
		`{"stats_flush_interval": "300s"}`,
		`{"stats_flush_interval": "0s"}`,
		`{"stats_flush_interval": "0.0025s", "stats_eviction_interval": "0.0075s"}`,
		`{"stats_eviction_interval": "11s"}`,
		`{"stats_eviction_interval": "0s"}`,
		`{"stats_config": {"histogram_bucket_settings": [{"match": {"prefix": ""}, "buckets": [1]}]}}`,
		`{"stats_config": {"histogram_bucket_settings": [{"match": {"prefix": "a"}, "buckets": [0]}]}}`,
		`{"stats_config": {"histogram_bucket_settings": [{"match": {"prefix": "a"}, "buckets": [1, 1]}]}}`,
	} {
		if refused(t, envoy, doc) == nil {
			t.Errorf("envoy accepts %s", doc)
		}
	}
}

// TestConnectionLimit checks that the limit on connections comes from node metadata, else from the
// runtime.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config    string
		variables map[string]string
		want      int64
		err       string
	}{
		"default":          {want: 1<<31 - 1},
		"runtime":          {config: "runtimeValues: {" + maxConnectionsKey + ": '5'}", want: 5},
		"metadata":         {config: "proxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: '7'}", want: 7},
		"metadata wins":    {config: "runtimeValues: {" + maxConnectionsKey + ": '5'}\nproxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: '7'}", want: 7},
		"variable":         {variables: map[string]string{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": "8"}, want: 8},
		"a number in JSON": {variables: map[string]string{"ISTIO_METAJSON_X": `{"GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": 1000000}`}, want: 1_000_000},
		"empty":            {variables: map[string]string{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": ""}, err: `node metadata GLOBAL_DOWNSTREAM_MAX_CONNECTIONS is ""; it must be a number from 1`},
		"zero":             {config: "proxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: '0'}", err: `is "0"; it must be a number from 1`},
		"text":             {config: "proxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: many}", err: `is "many"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pc := proxyConfig(t, tc.config)
			m, _, err := NodeMetadata(MetadataInput{Variables: tc.variables, ProxyConfig: pc})
			if err != nil {
				t.Fatal(err)
			}
			in := Input{ProxyConfig: pc, Metadata: m}
			doc, err := Render(in)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				OverloadManager struct {
					ResourceMonitors []struct {
						TypedConfig struct {
							Limit int64 `json:"max_active_downstream_connections"`
						} `json:"typed_config"`
					} `json:"resource_monitors"`
				} `json:"overload_manager"`
			}
			if err := json.Unmarshal(doc, &got); err != nil {
				t.Fatal(err)
			}
			if limit := got.OverloadManager.ResourceMonitors[0].TypedConfig.Limit; limit != tc.want {
				t.Errorf("limit %d, want %d", limit, tc.want)
			}
		})
	}
}

// TestTemplateConnectionLimit checks that the runtime has the limit on connections only for
// templates without the newer parameter.
func TestTemplateConnectionLimit(t *testing.T) {
	t.Parallel()
	m, _, err := NodeMetadata(MetadataInput{Variables: map[string]string{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": "8"}, ProxyConfig: proxyConfig(t, "")})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{"r": {{ .runtime_flags }}}`: `"overload.global_downstream_max_connections":"8"`,
		`{"r": {{ .runtime_flags }}, "x": "overload.global_downstream_max_connections", "m": {{- .global_downstream_max_connections }}}`: `"re2.max_program_size.error_level":"32768"}, "x": "overload.global_downstream_max_connections", "m":8}`,
	} {
		doc, _, err := RenderTemplate(Input{ProxyConfig: proxyConfig(t, ""), Metadata: m}, Template{Path: "x.json", Text: []byte(text)})
		if err != nil || !strings.Contains(string(doc), want) {
			t.Errorf("%s, %v, want %s", doc, err, want)
		}
	}
}

func TestLoadStatsErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"{": `LOAD_STATS_CONFIG_JSON is "{"; it must be a JSON object, Envoy's ApiConfigSource`, "null": "must be a JSON object", "": "must be a JSON object", "[]": "must be a JSON object"} {
		m := &node.Metadata{Raw: map[string]any{loadStatsMetadata: text}}
		_, err := Render(Input{ProxyConfig: proxyConfig(t, ""), Metadata: m})
		_, _, alike := RenderTemplate(Input{ProxyConfig: proxyConfig(t, ""), Metadata: m}, Template{Path: "x.json", Text: []byte("{}")})
		for _, err := range []error{err, alike} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %v, want one with %q", text, err, want)
			}
		}
	}
}

// TestUnsetGuards checks that no bootstrap sets what the comparison with Istio 1.30 says is left out.
func TestUnsetGuards(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*/want.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d bootstraps: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"coalesce_lb_rebuilds_on_batch_update", "fixed_heap_use_allocated", "enable_deferred_cluster_creation"} {
			if strings.Contains(string(text), name) {
				t.Errorf("%s sets %s: correct docs/compatibility.md", file, name)
			}
		}
	}
}
