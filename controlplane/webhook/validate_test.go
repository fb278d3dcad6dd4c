// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package webhook

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/patch"
)

func newValidator(t *testing.T) *Validator {
	t.Helper()
	v, err := NewValidator(Config{Registerer: prometheus.NewRegistry(), Patches: patch.Limits{NoLua: true}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func post(v http.Handler, contentType, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/validate", strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	return w
}

// ask returns the JSON of a review request for an object.
func ask(version, operation, group, kind, object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/%s","kind":"AdmissionReview","request":{"uid":"u-1","operation":%q,`+
		`"kind":{"group":%q,"version":"v1","kind":%q},"resource":{"group":%q,"version":"v1","resource":"r"},"name":"x","namespace":"shop","object":%s}}`,
		version, operation, group, kind, group, object)
}

func entry(spec string) string {
	return `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"x","namespace":"shop","managedFields":[{}]},"spec":` + spec + `}`
}

func filter(patch string) string {
	return `{"apiVersion":"networking.istio.io/v1alpha3","kind":"EnvoyFilter","metadata":{"name":"x","namespace":"shop"},"spec":{"configPatches":[{"applyTo":"HTTP_FILTER","patch":{"operation":` + patch + `}}]}}`
}

func TestReviews(t *testing.T) {
	t.Parallel()
	const group = "networking.istio.io"
	for name, c := range map[string]struct {
		operation, group, kind, object string
		allowed                        bool
		says, warns                    string
	}{
		"good":              {"CREATE", group, "WorkloadEntry", entry(`{"address":"10.0.0.1"}`), true, "", ""},
		"bad":               {"CREATE", group, "WorkloadEntry", entry(`{"address":"no address!"}`), false, "WorkloadEntry is not valid: spec.address ", ""},
		"bad update":        {"UPDATE", group, "WorkloadEntry", entry(`{}`), false, "spec.address", ""},
		"unknown field":     {"CREATE", group, "WorkloadEntry", entry(`{"adress":"10.0.0.1"}`), false, `unknown field "adress" in spec: did you mean "address"?`, ""},
		"all at once":       {"CREATE", group, "WorkloadEntry", entry(`{"adress":"10.0.0.1","weihgt":1}`), false, "weihgt", ""},
		"leaving":           {"UPDATE", group, "WorkloadEntry", strings.Replace(entry(`{}`), `"name":"x"`, `"name":"x","deletionTimestamp":"2030-01-02T03:04:05Z"`, 1), true, "", ""},
		"deleted":           {"DELETE", group, "WorkloadEntry", "null", true, "", ""},
		"connected":         {"CONNECT", group, "WorkloadEntry", "null", true, "", ""},
		"another API group": {"CREATE", "apps", "Deployment", `{"apiVersion":"apps/v1","kind":"Deployment"}`, true, "", ""},
		"a later kind":      {"CREATE", group, "LaterKind", `{"spec":{"what":"ever"}}`, true, "", ""},
		"name of a kind":    {"CREATE", "example.com", "Gateway", `{"spec":{"what":"ever"}}`, true, "", ""},
		"Gateway API":       {"CREATE", "gateway.networking.k8s.io", "GatewayClass", `{"apiVersion":"gateway.networking.k8s.io/v1","kind":"GatewayClass","metadata":{"name":"x"},"spec":{}}`, false, "spec.controllerName", ""},
		"without effect":    {"CREATE", "networking.istio.io", "EnvoyFilter", `{"apiVersion":"networking.istio.io/v1alpha3","kind":"EnvoyFilter","metadata":{"name":"x","namespace":"shop"},"spec":{"configPatches":[{"applyTo":"HTTP_FILTER","match":{"listener":{"portName":"http"}},"patch":{"operation":"REMOVE"}}]}}`, true, "", "has no effect in this version"},
		"no object at all":  {"CREATE", group, "WorkloadEntry", `"text"`, false, "", ""},
		"patch":             {"CREATE", group, "EnvoyFilter", filter(`"INSERT_FIRST","value":{"name":"a","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer","max_request_bytes":0}}`), true, "", "spec.configPatches[0].patch.value would be refused by Envoy: "},
		"good patch":        {"CREATE", group, "EnvoyFilter", filter(`"INSERT_FIRST","value":{"name":"a","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer","max_request_bytes":9}}`), true, "", ""},
		"script":            {"CREATE", "extensions.istio.io", "TrafficExtension", `{"apiVersion":"extensions.istio.io/v1alpha1","kind":"TrafficExtension","metadata":{"name":"x","namespace":"shop"},"spec":{"lua":{"inlineCode":"a"}}}`, true, "", "spec.lua: Lua is switched off"},
		"known problem":     {"CREATE", group, "EnvoyFilter", filter(`"INSERT_FIRST","value":{"name":"a","typed_config":{"@type":"type.googleapis.com/stats.PluginConfig"}}`), false, "use a Telemetry object", ""},
	} {
		for _, version := range []string{"v1", "v1beta1"} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				w := post(newValidator(t), "application/json; charset=utf-8", ask(version, c.operation, c.group, c.kind, c.object))
				if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
					t.Fatalf("got %d %v: %s", w.Code, w.Header(), w.Body)
				}
				// The API server decodes the response with its own types.
				var v1 admissionv1.AdmissionReview
				var beta admissionv1beta1.AdmissionReview
				if err := json.Unmarshal(w.Body.Bytes(), &v1); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(w.Body.Bytes(), &beta); err != nil {
					t.Fatal(err)
				}
				r := v1.Response
				if v1.APIVersion != "admission.k8s.io/"+version || v1.Kind != "AdmissionReview" || r.UID != "u-1" || beta.Response.UID != "u-1" ||
					r.Allowed != c.allowed || beta.Response.Allowed != c.allowed || v1.Request != nil {
					t.Errorf("response: got %s", w.Body)
				}
				if !c.allowed && (r.Result == nil || !strings.Contains(r.Result.Message, c.says) || len(r.Result.Details.Causes) == 0) {
					t.Errorf("result: got %+v, want %q", r.Result, c.says)
				}
				if got := strings.Join(r.Warnings, "; "); !strings.Contains(got, c.warns) || c.warns == "" && got != "" {
					t.Errorf("warnings: got %q, want %q", got, c.warns)
				}
			})
		}
	}
}

func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	good := ask("v1", "CREATE", "networking.istio.io", "WorkloadEntry", entry(`{"address":"10.0.0.1"}`))
	v := newValidator(t)
	for name, c := range map[string]struct {
		contentType, body string
		status            int
		says              string
	}{
		"no content type":   {"", good, http.StatusUnsupportedMediaType, `the content type is ""`},
		"YAML":              {"application/yaml", good, http.StatusUnsupportedMediaType, "it must be application/json"},
		"empty":             {"application/json", "", http.StatusBadRequest, "the body is empty"},
		"no JSON":           {"application/json", "{", http.StatusBadRequest, "not an AdmissionReview"},
		"another kind":      {"application/json", `{"apiVersion":"v1","kind":"Pod"}`, http.StatusBadRequest, "the body is v1 Pod"},
		"another version":   {"application/json", strings.Replace(good, "k8s.io/v1", "k8s.io/v2", 1), http.StatusBadRequest, "admission.k8s.io/v2"},
		"a large object":    {"application/json", ask("v1", "CREATE", "networking.istio.io", "WorkloadEntry", `{"x":"`+strings.Repeat("x", maxObject)+`"}`), http.StatusBadRequest, "API servers accept 3 MiB"},
		"without a request": {"application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest, "has no request"},
		"too large":         {"application/json", `{"x":"` + strings.Repeat("x", maxBody) + `"}`, http.StatusBadRequest, "larger than 6 MiB"},
	} {
		w := post(v, c.contentType, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: got %d %s, want %d with %q", name, w.Code, w.Body, c.status, c.says)
		}
	}
	if got := testutil.ToFloat64(v.front.faults); got != 9 {
		t.Errorf("%v faults were counted, want 9", got)
	}
	r := httptest.NewRequest(http.MethodGet, "/validate", nil)
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodPost {
		t.Errorf("GET: got %d %v, want 405", w.Code, w.Header())
	}
}

func TestLargeObjects(t *testing.T) {
	t.Parallel()
	labels := strings.Repeat("x", 3<<20)
	w := post(newValidator(t), "application/json", ask("v1", "CREATE", "networking.istio.io", "WorkloadEntry",
		`{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"x","annotations":{"a":"`+labels+`"}},"spec":{"address":"10.0.0.1"}}`))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"allowed":true`) {
		t.Errorf("got %d %.300s, want 200", w.Code, w.Body)
	}
}

// TestBodiesAreBounded checks that large unfinished requests leave room for small ones, and that a
// request without room receives 503.
func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	v := newValidator(t)
	good := ask("v1", "CREATE", "networking.istio.io", "WorkloadEntry", entry(`{"address":"10.0.0.1"}`))
	large := ask("v1", "CREATE", "networking.istio.io", "WorkloadEntry",
		`{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"x","annotations":{"a":"`+strings.Repeat("x", 1<<20)+`"}},"spec":{"address":"10.0.0.1"}}`)
	const senders = moreBodies / (maxBody - freeBody)
	var pipes []*io.PipeWriter
	ended := make(chan int, senders)
	for range senders {
		body, sender := io.Pipe()
		go func() {
			r := httptest.NewRequest(http.MethodPost, "/validate", body)
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			v.ServeHTTP(w, r)
			ended <- w.Code
		}()
		// The last byte is accepted after all bytes before it were read.
		if _, err := io.WriteString(sender, strings.Repeat("x", maxBody-1)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(sender, "x"); err != nil {
			t.Fatal(err)
		}
		pipes = append(pipes, sender)
	}
	free := int64(moreBodies - senders*(maxBody-freeBody))
	for free > 0 && v.front.bodies.TryAcquire(1) { // the remaining capacity
		free--
	}
	if w := post(v, "application/json", good); w.Code != http.StatusOK {
		t.Errorf("a small request: got %d %s, want 200", w.Code, w.Body)
	}
	if w := post(v, "application/json", large); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("a large request without room: got %d %.100s, want 503", w.Code, w.Body)
	}
	for _, sender := range pipes {
		_ = sender.Close() // closing a pipe cannot fail
		if code := <-ended; code != http.StatusBadRequest {
			t.Errorf("a body that is not JSON: got %d, want 400", code)
		}
	}
	if w := post(v, "application/json", large); w.Code != http.StatusOK {
		t.Errorf("a large request once there is room: got %d %.100s, want 200", w.Code, w.Body)
	}
}

func FuzzValidator(f *testing.F) {
	f.Add(ask("v1", "CREATE", "networking.istio.io", "WorkloadEntry", entry(`{"address":"10.0.0.1"}`)))
	f.Add(ask("v1beta1", "UPDATE", "gateway.networking.k8s.io", "HTTPRoute", `{"spec":{"rules":[{}]}}`))
	f.Add(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"object":{}}}`)
	v, err := NewValidator(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		w := post(v, "application/json", body)
		if w.Code == http.StatusOK && !json.Valid(w.Body.Bytes()) {
			t.Errorf("the response is not JSON: %s", w.Body)
		}
	})
}
