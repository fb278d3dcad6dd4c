// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package webhook

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/inject"
)

func newTestInjector(t testing.TB) *Injector {
	t.Helper()
	config, err := inject.ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	values, err := inject.ParseValues(nil, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	current := &inject.Injector{Config: config, Values: values, Mesh: meshconfig.Default(), Native: true}
	w, err := NewInjector(InjectorConfig{Current: func() *inject.Injector { return current }, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func postTo(h http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func podOf(metadata string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":` + metadata + `,"spec":{"containers":[{"name":"app","image":"example/app:1"}]}}`
}

func TestInjection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, kind, object string
		allowed            bool
		patch              string // part of the patch; empty means none
		says, warns        string
	}{
		"plain":            {"/inject", "Pod", podOf(`{"name":"a"}`), true, `"istio-proxy"`, "", ""},
		"slash":            {"/inject/", "Pod", podOf(`{"name":"a"}`), true, `"istio-proxy"`, "", ""},
		"path":             {"/inject/cluster/east/net/west", "Pod", podOf(`{"name":"a"}`), true, `{"name":"ISTIO_META_CLUSTER_ID","value":"east"}`, "", ""},
		"network":          {"/inject/cluster/east/net/west", "Pod", podOf(`{"name":"a"}`), true, `"topology.istio.io/network":"west"`, "", ""},
		"wrong path":       {"/inject/cluster", "Pod", podOf(`{"name":"a"}`), false, "", "a name without a value", ""},
		"refused by label": {"/inject", "Pod", podOf(`{"name":"a","labels":{"sidecar.istio.io/inject":"false"}}`), true, "", "", ""},
		"wrong label":      {"/inject", "Pod", podOf(`{"name":"a","labels":{"sidecar.istio.io/inject":"maybe"}}`), true, `"istio-proxy"`, "", "it must be"},
		"wrong annotation": {"/inject", "Pod", podOf(`{"name":"a","annotations":{"sidecar.istio.io/proxyCPU":"much"}}`), false, "", `annotation sidecar.istio.io/proxyCPU is "much": it must be a quantity`, ""},
		"another kind":     {"/inject", "Deployment", `{"spec":{}}`, true, "", "", ""},
		"no pod":           {"/inject", "Pod", `"text"`, false, "", "the object is not a Pod", ""},
		"no object":        {"/inject", "Pod", `null`, true, "", "", ""},
		"wrong pod":        {"/inject", "Pod", `{"spec":{"containers":{}}}`, false, "", "the object is not a Pod", ""},
		"empty pod":        {"/inject", "Pod", `{}`, true, `"istio-proxy"`, "", ""},
	} {
		for _, version := range []string{"v1", "v1beta1"} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				answer := postTo(newTestInjector(t), c.path, ask(version, "CREATE", "", c.kind, c.object))
				if answer.Code != http.StatusOK {
					t.Fatalf("got %d %s, want 200", answer.Code, answer.Body)
				}
				var got struct {
					APIVersion string
					Response   *admissionv1.AdmissionResponse
				}
				if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
					t.Fatal(err)
				}
				r := got.Response
				if got.APIVersion != "admission.k8s.io/"+version || r.UID != "u-1" || r.Allowed != c.allowed {
					t.Errorf("got version %s, UID %s, allowed %t: %v", got.APIVersion, r.UID, r.Allowed, r.Result)
				}
				if (c.patch == "") != (len(r.Patch) == 0) || !strings.Contains(string(r.Patch), c.patch) {
					t.Errorf("the patch does not contain %s: %s", c.patch, r.Patch)
				}
				if len(r.Patch) > 0 && (r.PatchType == nil || *r.PatchType != admissionv1.PatchTypeJSONPatch) {
					t.Error("the type of the patch is not JSONPatch")
				}
				if c.says != "" && (r.Result == nil || !strings.Contains(r.Result.Message, c.says)) {
					t.Errorf("the message does not contain %q: %v", c.says, r.Result)
				}
				if !strings.Contains(strings.Join(r.Warnings, "\n"), c.warns) || c.warns == "" && len(r.Warnings) > 0 {
					t.Errorf("warnings: got %q, want %q", r.Warnings, c.warns)
				}
			})
		}
	}
}

// TestInjectionWithoutConfiguration checks that pods are rejected with a reason until the
// configuration of the injector was read.
func TestInjectionWithoutConfiguration(t *testing.T) {
	t.Parallel()
	w, err := NewInjector(InjectorConfig{Current: func() *inject.Injector { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	answer := postTo(w, "/inject", ask("v1", "CREATE", "", "Pod", podOf(`{"name":"a"}`))).Body.String()
	if !strings.Contains(answer, `"allowed":false`) || !strings.Contains(answer, "has not read a valid configuration") {
		t.Error(answer)
	}
}

func TestInjectionMetrics(t *testing.T) {
	t.Parallel()
	w := newTestInjector(t)
	for _, object := range []string{
		podOf(`{"name":"a"}`), podOf(`{"name":"a","labels":{"sidecar.istio.io/inject":"false"}}`), podOf(`{"annotations":{"status.sidecar.istio.io/port":"x"}}`),
	} {
		postTo(w, "/inject", ask("v1", "CREATE", "", "Pod", object))
	}
	if answer := postTo(w, "/inject", "no JSON"); answer.Code != http.StatusBadRequest {
		t.Errorf("a body that is not JSON: got status %d, want 400", answer.Code)
	}
	if answer := postTo(w, "/inject", ""); answer.Code != http.StatusBadRequest {
		t.Errorf("an empty body: got status %d, want 400", answer.Code)
	}
	if answer := postTo(w, "/inject", strings.Repeat(" ", maxBody+1)); answer.Code != http.StatusBadRequest {
		t.Errorf("a large body: got status %d, want 400", answer.Code)
	}
	for name, c := range map[string]struct {
		counter prometheus.Counter
		want    float64
	}{"requests": {w.requests, 6}, "success": {w.done, 2}, "failure": {w.failed, 4}, "skip": {w.skipped, 1}} {
		if got := testutil.ToFloat64(c.counter); got != c.want {
			t.Errorf("metric %s: got %g, want %g", name, got, c.want)
		}
	}
}

// FuzzInjector checks that any body and path result in a response.
func FuzzInjector(f *testing.F) {
	f.Add("cluster/a/net/b", podOf(`{"annotations":{"inject.istio.io/templates":"gateway"}}`))
	f.Add(":ENV:a=b", `{"spec":{"containers":[null,{"name":"istio-proxy","env":[{}]}],"initContainers":[{}]}}`)
	f.Add("", `{"metadata":{"annotations":null,"labels":null},"spec":null,"x":1}`)
	w := newTestInjector(f)
	f.Fuzz(func(t *testing.T, path, object string) {
		r := httptest.NewRequest(http.MethodPost, "/inject", strings.NewReader(ask("v1", "CREATE", "", "Pod", object)))
		r.URL.Path = "/inject/" + path
		r.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		w.ServeHTTP(answer, r)
		if answer.Code != http.StatusOK && answer.Code != http.StatusBadRequest {
			t.Errorf("got %d %s, want 200 or 400", answer.Code, answer.Body)
		}
	})
}
