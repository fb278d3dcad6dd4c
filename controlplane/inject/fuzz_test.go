// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// FuzzInject checks that any pod results in an injected pod or an error, and that the result can be
// injected again.
func FuzzInject(f *testing.F) {
	f.Add([]byte(`{"metadata":{"annotations":{"inject.istio.io/templates":"gateway,grpc-agent,custom"}},"spec":{"containers":[{"name":"istio-proxy"},{"name":"a","livenessProbe":{"grpc":{"port":1}}}]}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"sidecar.istio.io/status":"{\"containers\":[\"a\",\"istio-proxy\"]}","proxy.istio.io/overrides":"{\"containers\":[{\"name\":\"a\"}]}"}},"spec":{"initContainers":[{"name":"istio-proxy"}],"containers":null}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"proxy.istio.io/config":"{\"proxyMetadata\":{\"\":\"x\"}}","sidecar.istio.io/userVolume":"{\"\":{}}"}},"spec":{"containers":[{"name":""},{"name":""}]}}`))
	in := newInjector(f, "templates: {custom: \"spec: {containers: [{name: {{ (index .Spec.Containers 0).Name | quote }}}]}\"}", "", "")
	f.Fuzz(func(t *testing.T, doc []byte) {
		pod := &corev1.Pod{}
		var object map[string]any
		if json.Unmarshal(doc, pod) != nil || json.Unmarshal(doc, &object) != nil || object == nil {
			return
		}
		out, err := in.Inject(Request{Pod: pod})
		if err != nil || out.Skipped != "" {
			return
		}
		if _, _, err := Patch(object, pod, out.Pod); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Inject(Request{Pod: out.Pod}); err != nil {
			t.Errorf("injecting the injected pod again: %v", err)
		}
	})
}

// FuzzAnnotation checks that any value of an annotation is accepted or results in a short error.
func FuzzAnnotation(f *testing.F) {
	in := newInjector(f, "", "{pilot: {cni: {enabled: true, provider: multus}}, global: {proxy: {tracer: datadog}}}", "")
	for name := range annotationChecks() {
		f.Add(name, "")
		f.Add(name, "x")
	}
	for _, name := range []string{nameTemplates, nameStatus, nameMultus, nameDatadog, "prometheus.io/port", "prometheus.io/scrape"} {
		f.Add(name, "[]")
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		_, err := in.Inject(Request{Pod: podWith(nil, map[string]string{name: value})})
		const most = 4096 // limit of the length of an error
		if err != nil && len(err.Error()) > most {
			t.Errorf("an error has %d bytes", len(err.Error()))
		}
	})
}

// FuzzFile checks that any file results in a file or an error, and is unchanged if no proxy is
// injected.
func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	in := newInjector(f, "", "", "")
	f.Fuzz(func(t *testing.T, doc []byte) {
		var out bytes.Buffer
		lines := 0
		if err := in.File(bytes.NewReader(doc), &out, "", func(string) { lines++ }); err != nil {
			return
		}
		if !bytes.Equal(doc, out.Bytes()) && !strings.Contains(out.String(), nameStatus) {
			t.Errorf("a file without injected proxies was changed: %q", out.String())
		}
	})
}

// FuzzConfig checks that any configuration is accepted or results in an error.
func FuzzConfig(f *testing.F) {
	f.Add([]byte("policy: enabled\ntemplates: {a: '{{ .Values }}'}\naliases: {b: [a]}\ndefaultTemplates: [b]"), []byte("global: {proxy: {resources: {limits: {cpu: 1}}}}"))
	f.Add([]byte("templates: {sidecar: 'spec: {containers: [{name: a, $patch: delete}]}'}"), []byte("global: null"))
	f.Fuzz(func(t *testing.T, config, values []byte) {
		in := newInjector(t, "", "", "")
		var err error
		if in.Config, err = ParseConfig(config); err != nil {
			return
		}
		if in.Values, err = ParseValues(values, ""); err != nil {
			return
		}
		_, _ = in.Inject(Request{Pod: podWith(nil, nil)}) // must return
	})
}
