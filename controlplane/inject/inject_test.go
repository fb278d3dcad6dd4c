// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podWith returns a pod with labels and annotations.
func podWith(labels, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "app-1", GenerateName: "app-", Labels: labels, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example/app:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}},
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const selectors = "neverInjectSelector: [{matchLabels: {batch: \"yes\"}}, {matchExpressions: [{key: raw, operator: Exists}]}, {}]\nalwaysInjectSelector: [{matchLabels: {web: \"yes\"}}]\n"
	type m = map[string]string
	for name, c := range map[string]struct {
		config              string
		labels, annotations m
		namespace           string
		hostNetwork         bool
		want                bool
		warns               bool
	}{
		"enabled":                     {want: true},
		"disabled":                    {config: "policy: disabled"},
		"label true":                  {config: "policy: disabled", labels: m{nameInject: "true"}, want: true},
		"label false":                 {labels: m{nameInject: "false"}},
		"annotation true":             {config: "policy: disabled", annotations: m{nameInject: "true"}, want: true},
		"annotation false":            {annotations: m{nameInject: "false"}},
		"label over annotation":       {labels: m{nameInject: "true"}, annotations: m{nameInject: "false"}, want: true},
		"label false over annotation": {labels: m{nameInject: "false"}, annotations: m{nameInject: "true"}},
		"empty label":                 {labels: m{nameInject: ""}, annotations: m{nameInject: "false"}, want: true},
		"wrong label":                 {labels: m{nameInject: "yes"}, want: true, warns: true},
		"wrong annotation":            {config: "policy: disabled", annotations: m{nameInject: "on"}, warns: true},
		"never":                       {config: selectors, labels: m{"batch": "yes"}},
		"never by existence":          {config: selectors, labels: m{"raw": ""}},
		"never over always":           {config: selectors, labels: m{"batch": "yes", "web": "yes"}},
		"never does not match":        {config: selectors, labels: m{"batch": "no"}, want: true},
		"label over never":            {config: selectors, labels: m{"batch": "yes", nameInject: "true"}, want: true},
		"always":                      {config: selectors + "policy: disabled", labels: m{"web": "yes"}, want: true},
		"always does not match":       {config: selectors + "policy: disabled", labels: m{"web": "no"}},
		"label over always":           {config: selectors + "policy: disabled", labels: m{"web": "yes", nameInject: "false"}},
		"wrong label, always":         {config: selectors + "policy: disabled", labels: m{"web": "yes", nameInject: "1"}, want: true, warns: true},
		"host network":                {labels: m{nameInject: "true"}, hostNetwork: true},
		"kube-system":                 {labels: m{nameInject: "true"}, namespace: "kube-system"},
		"kube-public":                 {namespace: "kube-public"},
		"kube-node-lease":             {namespace: "kube-node-lease"},
		"local-path-storage":          {namespace: "local-path-storage"},
		"istio-system":                {namespace: "istio-system", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podWith(c.labels, c.annotations)
			pod.Spec.HostNetwork = c.hostNetwork
			out, err := newInjector(t, c.config, "", "").Inject(Request{Pod: pod, Namespace: c.namespace})
			if err != nil {
				t.Fatal(err)
			}
			if got := out.Skipped == ""; got != c.want {
				t.Errorf("injected: %t, want %t (%s)", got, c.want, out.Skipped)
			}
			if got := len(out.Warnings) > 0; got != c.warns {
				t.Errorf("warnings: got %q", out.Warnings)
			}
			if !c.want && out.Pod != pod {
				t.Error("a skipped pod was replaced")
			}
		})
	}
}

func TestWrongAnnotations(t *testing.T) {
	t.Parallel()
	in := newInjector(t, "", "", "")
	for name, values := range map[string][]string{
		nameInterception:      {"", "redirect", "TPROXY "},
		nameNative:            {"", "yes"},
		nameRewriteProbes:     {"maybe"},
		nameMergeMetrics:      {"maybe"},
		nameCPU:               {"", "much", "1 core", "1\n2"},
		nameMemoryLimit:       {"1X"},
		nameStatusPort:        {"", "-1", "65536", "http"},
		nameInitialDelay:      {"-1", "1s", "99999999999"},
		namePeriod:            {"1.5"},
		nameFailures:          {""},
		nameIncludeRanges:     {"10.0.0.0", "*,10.0.0.0/8", "10.0.0.0/33", ","},
		nameExcludeRanges:     {"*", "x/8"},
		nameIncludeInbound:    {"http", "80,", "*,80"},
		nameExcludeInbound:    {"*", "65536"},
		nameIncludeOutbound:   {"1-2"},
		nameExcludeOutbound:   {"80;81"},
		nameExcludeInterfaces: {"eth0,", "a/b", "sixteen-letters!", "e th", "eth0:1"},
		nameKubevirt:          {".."},
		nameReroute:           {"\x00"},
		nameProxyConfig:       {"x: [", "[]", "concurrency: -1", "drainDuration: soon", "interceptionMode: X"},
		nameUserVolume:        {"", "[]", "{\"a\": 1}", "{\"a\": {\"hostPath\": 1}}"},
		nameUserMount:         {"x", "{\"a\": {\"mountPath\": {}}}"},
		nameBootstrap:         {"", "A", "a\nb: c", "\"x"},
		nameOverrides:         {"x", "{\"containers\": {}}"},
		nameTemplates:         {"none", "sidecar,none"},
		"prometheus.io/port":  {"http", "0", "65536"},
	} {
		for _, value := range values {
			out, err := in.Inject(Request{Pod: podWith(nil, map[string]string{name: value})})
			if err == nil {
				t.Errorf("%s: %q was accepted: %v", name, value, out.Pod.Annotations)
				continue
			}
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %q: the error does not name the annotation: %v", name, value, err)
			}
		}
	}
	_, err := in.Inject(Request{Pod: podWith(nil, map[string]string{nameCPU: "x", nameStatusPort: "y", nameIncludeInbound: strings.Repeat("z", 1000)})})
	if err == nil || strings.Count(err.Error(), "it must be") != 3 || len(err.Error()) > 1000 {
		t.Errorf("the error does not list every annotation, or is too long: %v", err)
	}
}

// TestHostileAnnotations checks that values of annotations cannot add fields to a pod.
func TestHostileAnnotations(t *testing.T) {
	t.Parallel()
	in := newInjector(t, "", "", "")
	const hostile = "\"\n    privileged: true\n  hostNetwork: true\n#{{ .Values }}"
	for _, name := range []string{nameLogLevel, nameComponentLogLevel, nameAgentLogLevel, nameImage, nameImageType, nameDefaultContainer} {
		out, err := in.Inject(Request{Pod: podWith(nil, map[string]string{name: hostile})})
		if err != nil {
			t.Fatal(err)
		}
		proxy := findContainer(proxyName, out.Pod)
		if out.Pod.Spec.HostNetwork || *proxy.SecurityContext.Privileged {
			t.Errorf("annotation %s added fields to the pod", name)
		}
	}
}

func TestWrongConfig(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"policy: off":                     "policy is \"false\"; it must be enabled or disabled",
		"policy: always":                  "policy is \"always\"; it must be enabled or disabled",
		"defaultTemplates: [none]":        "defaultTemplates has \"none\": the template does not exist; the templates are gateway, grpc-agent, grpc-simple, sidecar",
		"templates: {a: '{{ if }}'}":      "template a line 1: missing value for if",
		"templates: {a: '{{ unknown }}'}": "function \"unknown\" not defined",
		"neverInjectSelector: [{matchExpressions: [{key: a, operator: Is}]}]": "neverInjectSelector[0]: ",
		"alwaysInjectSelector: [{}, {matchLabels: {'/': x}}]":                 "alwaysInjectSelector[1]: ",
		"[":           "the configuration of the injector: ",
		manyAliases(): "the configuration of the injector: line 2: the aliases",
	} {
		if _, err := ParseConfig([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseConfig(%.100s) = %v, want an error with %q", doc, err, want)
		}
	}
	for doc, want := range map[string]string{
		"[]":                                     "the values are not a map",
		"global: {hub: {a: b}}":                  "it is a map or a list; it must be a single value",
		"global: {proxy: {privileged: perhaps}}": "it is \"perhaps\"; it must be true or false",
		"global: {proxy: {resources: {limits: {cpu: many}}}}": "quantities must match",
		"global: 1":   "cannot unmarshal",
		manyAliases(): "the values: line 2: the aliases",
	} {
		if _, err := ParseValues([]byte(doc), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseValues(%s) = %v, want an error with %q", doc, err, want)
		}
	}
	in := newInjector(t, "", "{global: {proxy: {readinessPeriodSeconds: often}}}", "")
	if _, err := in.Inject(Request{Pod: podWith(nil, nil)}); err == nil || !strings.Contains(err.Error(), "it must be a number") {
		t.Errorf("a value that is not a number: got error %v", err)
	}
}

// TestWrongTemplates checks that custom templates that fail or produce no pod are errors of the
// pods that use them.
func TestWrongTemplates(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"{{ fail \"no\" }}":                        "template own line 1",
		"a: [":                                     "its output is not the YAML of a pod",
		"- 1":                                      "its output is not the YAML of a pod",
		"spec: {containers: {a: b}}":               "template own is not a part of a pod",
		"spec: {containers: [{image: x}]}":         "merge template own with the pod",
		"spec: {hostNetwork: perhaps}":             "template own is not a part of a pod",
		"{{ range until 1000000000 }}{{ end }}":    "template own line 1",
		"{{ protoToJSON .Values }}":                "protoToJSON requires .ProxyConfig or .MeshConfig",
		"{{ .ProxyConfig.InterceptionMode.Name }}": "can't evaluate field Name",
	} {
		doc, err := json.Marshal(map[string]any{"templates": map[string]string{"own": source}, "defaultTemplates": []string{"own"}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = newInjector(t, string(doc), "", "").Inject(Request{Pod: podWith(nil, nil)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", source, err, want)
		}
	}
}

// TestTemplateData checks that custom templates have the data and functions that they have in
// Istio.
func TestTemplateData(t *testing.T) {
	t.Parallel()
	const mesh = "{defaultConfig: {concurrency: 2, drainDuration: 90s, tracing: {zipkin: {address: \"a:1\"}}, proxyMetadata: {A: b}}, trustDomain: td, outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"
	pod := podWith(map[string]string{"app": "x"}, map[string]string{"one": "1"})
	pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 53, Protocol: corev1.ProtocolUDP}, corev1.ContainerPort{ContainerPort: 9090})
	for source, want := range map[string]string{
		`{{ .ProxyConfig.Concurrency.GetValue }}`:                                                                       "2",
		`{{ .ProxyConfig.HoldApplicationUntilProxyStarts.GetValue }}`:                                                   "<no value>",
		`{{ if .ProxyConfig.GetTracing.GetTlsSettings.GetCaCertificates }}x{{ end }}`:                                   "",
		`{{ .ProxyConfig.GetTracing.GetZipkin.GetAddress }}`:                                                            "a:1",
		`{{ .ProxyConfig.InterceptionMode }} {{ .ProxyConfig.InterceptionMode.String }}`:                                "REDIRECT REDIRECT",
		`{{ annotation .ObjectMeta "two" .ProxyConfig.InterceptionMode }}`:                                              "REDIRECT",
		`{{ annotation .ObjectMeta "one" "2" }}`:                                                                        "1",
		`{{ formatDuration .ProxyConfig.DrainDuration }}`:                                                               "1m30s",
		`{{ index .ProxyConfig.ProxyMetadata "A" }}`:                                                                    "b",
		`{{ protoToJSON .ProxyConfig }}`:                                                                                `{"drainDuration":"90s","concurrency":2,"tracing":{"zipkin":{"address":"a:1"}},"proxyMetadata":{"A":"b"}}`,
		`{{ .MeshConfig.TrustDomain }} {{ .MeshConfig.OutboundTrafficPolicy.Mode }}`:                                    "td REGISTRY_ONLY",
		`{{ .Values.global.proxy.statusPort }}`:                                                                         "15020",
		`{{ .TypeMeta.Kind }} {{ .DeploymentMeta.Name }} {{ .Revision }} {{ .NativeSidecars }} {{ .CompliancePolicy }}`: "Pod app-1 default true pqc",
		`{{ .ProxyImage }} {{ .ProxyInitImage }} {{ .ProxyUID }} {{ .InboundTrafficPolicyMode }}`:                       "outrigger/proxy:1.0.0 outrigger/proxy:1.0.0 1337 passthrough",
		`{{ isset .ObjectMeta.Labels "app" }} {{ isset .ObjectMeta.Labels "b" }}`:                                       "true false",
		`{{ includeInboundPorts .Spec.Containers }} {{ applicationPorts .Spec.Containers }}`:                            "8080,9090 8080,9090",
		`{{ excludeInboundPort 15020 "1, 2" }} {{ excludeInboundPort "2" "1,2" }} {{ excludeInboundPort 0 "1" }}`:       "1,2,15020 1,2 1",
		`{{ appendMultusNetwork "" "istio-cni" }} {{ appendMultusNetwork "[]" "a/b" }}`:                                 `istio-cni [{"name": "b", "namespace": "a"}]`,
		`{{ valueOrDefault "" "x" }} {{ valueOrDefault "y" "x" }}`:                                                      "x y",
		`{{ toJSON .ObjectMeta.Labels }} {{ toJsonMap .ObjectMeta.Labels (strdict "b" "c") }}`:                          `{"app":"x"} {"app":"x","b":"c"}`,
		`{{ (fromJSON "{\"a\": [1]}").a }}`:                                                                             "[1]",
		`{{ structToJSON (index .Spec.Containers 0).Ports }}`:                                                           `[{"containerPort":8080},{"containerPort":53,"protocol":"UDP"},{"containerPort":9090}]`,
		`{{ toYaml (omitNil (dict "a" nil "b" 1)) }}`:                                                                   "b: 1\n",
		`{{ indent 4 "a\nb" }} {{ directory "/a/b" }} {{ contains "b" "abc" }} {{ toLower "A" }} {{ env "HOME" "x" }}`:  "a\n  b /a/ true a x",
		`{{ len (omit .ObjectMeta.Labels "app") }} {{ len (mergeMaps .ObjectMeta.Labels .ObjectMeta.Annotations) }}`:    "0 2",
	} {
		in := newInjector(t, "", "", mesh)
		in.Compliance = "pqc"
		j, err := in.newJob(Request{Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		fields, err := j.custom("own", "result: |-\n  "+source+"\n")
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := fmt.Sprint(fields["result"]); got != strings.TrimSpace(want) {
			t.Errorf("%s: got %q, want %q", source, got, want)
		}
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	controller := func(version, kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Other", Name: "x"}, {APIVersion: version, Kind: kind, Name: name, Controller: new(true)}}
	}
	for want, pod := range map[string]metav1.ObjectMeta{
		"kubernetes://apis/v1/namespaces/shop/pods/a":              {Name: "a"},
		"kubernetes://apis/v1/namespaces/shop/pods/b":              {Name: "b", OwnerReferences: controller("v1", "ReplicaSet", "x")},
		"kubernetes://apis/apps/v1/namespaces/shop/deployments/a":  {GenerateName: "a-7d-", Labels: map[string]string{"pod-template-hash": "7d"}, OwnerReferences: controller("apps/v1", "ReplicaSet", "a-7d")},
		"kubernetes://apis/apps/v1/namespaces/shop/replicasets/a":  {GenerateName: "a-", OwnerReferences: controller("apps/v1", "ReplicaSet", "a")},
		"kubernetes://apis/v1alpha1/namespaces/shop/rollouts/a":    {GenerateName: "a-7d-", Labels: map[string]string{"rollouts-pod-template-hash": "7d"}, OwnerReferences: controller("apps/v1", "ReplicaSet", "a-7d")},
		"kubernetes://apis/v1/namespaces/shop/deploymentconfigs/a": {GenerateName: "a-1-", Labels: map[string]string{"deploymentconfig": "a"}, OwnerReferences: controller("v1", "ReplicationController", "a-1")},
		"kubernetes://apis/batch/v1/namespaces/shop/cronjobs/a":    {GenerateName: "a-29000000-", OwnerReferences: controller("batch/v1", "Job", "a-29000000")},
		"kubernetes://apis/batch/v1/namespaces/shop/jobs/a-1":      {GenerateName: "a-1-", OwnerReferences: controller("batch/v1", "Job", "a-1")},
		"kubernetes://apis/apps/v1/namespaces/shop/statefulsets/a": {GenerateName: "a-", OwnerReferences: controller("apps/v1", "StatefulSet", "a")},
	} {
		if got := ownerOf(&corev1.Pod{ObjectMeta: pod}, "shop").String(); got != want {
			t.Errorf("ownerOf() = %s, want %s", got, want)
		}
	}
	if got := (owner{apiVersion: "v1", kind: "Pod", name: "a"}).String(); got != "kubernetes://apis/v1/namespaces/default/pods/a" {
		t.Error(got)
	}
}

func TestPathVariables(t *testing.T) {
	t.Parallel()
	type m = map[string]string
	for path, want := range map[string]m{
		"/inject":                           nil,
		"/inject/":                          nil,
		"/inject/cluster/east/net/west":     {"ISTIO_META_CLUSTER_ID": "east", "ISTIO_META_NETWORK": "west"},
		"/inject/cluster/a--slash--b/x_y/1": {"ISTIO_META_CLUSTER_ID": "a/b", "X_Y": "1"},
		"/inject/:ENV:net=a:ENV:b=c=d:ENV:=x:ENV:none": {"ISTIO_META_NETWORK": "a", "B": "c=d"},
	} {
		got, err := PathVariables(path)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("PathVariables(%s) = %v, %v; want %v", path, got, err, want)
		}
	}
	for _, path := range []string{"", "/", "/injects", "/inject/cluster", "/inject//a", "/inject/a/b/c"} {
		if got, err := PathVariables(path); err == nil {
			t.Errorf("PathVariables(%s) = %v, want an error", path, got)
		}
	}
	out, err := newInjector(t, "", "{global: {network: west}}", "").Inject(Request{Pod: podWith(nil, nil), Env: m{"ISTIO_META_CLUSTER_ID": "east", "MORE": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, v := range findContainer(proxyName, out.Pod).Env {
		values[v.Name] = v.Value
	}
	if values["ISTIO_META_CLUSTER_ID"] != "east" || values["ISTIO_META_NETWORK"] != "west" || values["MORE"] != "x" || out.Pod.Labels[nameNetwork] != "west" {
		t.Errorf("variables: got %v, labels: got %v", values, out.Pod.Labels)
	}
}

// applyPatch applies a JSON patch according to RFC 6902, independently of the code under test.
func applyPatch(t *testing.T, object any, patch []byte) any {
	t.Helper()
	var operations []struct {
		Op, Path, From string
		Value          any
	}
	if err := json.Unmarshal(patch, &operations); err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		switch o.Op {
		case "add", "replace":
			object = change(t, object, pointer(o.Path), func(any, bool) (any, bool) { return o.Value, true }, o.Op == "add")
		case "remove":
			object = change(t, object, pointer(o.Path), func(any, bool) (any, bool) { return nil, false }, false)
		case "move":
			var moved any
			object = change(t, object, pointer(o.From), func(v any, _ bool) (any, bool) { moved = v; return nil, false }, false)
			object = change(t, object, pointer(o.Path), func(any, bool) (any, bool) { return moved, true }, true)
		default:
			t.Fatalf("unexpected operation %q", o.Op)
		}
	}
	return object
}

func pointer(path string) []string {
	parts := strings.Split(path, "/")[1:]
	for i := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i])
	}
	return parts
}

// change calls f to replace, insert or remove the value at a path.
func change(t *testing.T, object any, path []string, f func(any, bool) (any, bool), insert bool) any {
	t.Helper()
	switch o := object.(type) {
	case map[string]any:
		before, there := o[path[0]]
		if len(path) > 1 {
			o[path[0]] = change(t, before, path[1:], f, insert)
			return o
		}
		if !there && !insert {
			t.Fatalf("the patch refers to a missing key %s", path[0])
		}
		if v, keep := f(before, there); keep {
			o[path[0]] = v
		} else {
			delete(o, path[0])
		}
		return o
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i > len(o) || i == len(o) && !insert {
			t.Fatalf("the patch refers to item %s of %d", path[0], len(o))
		}
		if len(path) > 1 {
			o[i] = change(t, o[i], path[1:], f, insert)
			return o
		}
		if insert {
			v, _ := f(nil, false)
			return slices.Insert(o, i, v)
		}
		if v, keep := f(o[i], true); keep {
			o[i] = v
			return o
		}
		return slices.Delete(o, i, i+1)
	}
	t.Fatalf("the patch has the path %v in a %T", path, object)
	return nil
}

// TestPatch checks that the patch of a pod results in the injected pod and keeps unknown fields.
func TestPatch(t *testing.T) {
	t.Parallel()
	const doc = `{"apiVersion": "v1", "kind": "Pod", "future": {"a": [1]},
	"metadata": {"name": "a", "annotations": {"prometheus.io/port": "80", "a/b~c": "d"}, "future": 1},
	"spec": {"future": "x", "volumes": [{"name": "v", "future": {}}],
	"initContainers": [{"name": "i", "image": "i", "future": 2}],
	"containers": [{"name": "istio-proxy", "image": "auto"}, {"name": "app", "image": "a", "future": 4,
	"livenessProbe": {"future": 5, "httpGet": {"port": 80, "path": "/"}}}]}}`
	var object, original map[string]any
	pod := &corev1.Pod{}
	for _, to := range []any{&object, &original, pod} {
		if err := json.Unmarshal([]byte(doc), to); err != nil {
			t.Fatal(err)
		}
	}
	out, err := newInjector(t, "", "", "").Inject(Request{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	patch, changed, err := Patch(object, pod, out.Pod)
	if err != nil {
		t.Fatal(err)
	}
	applied := applyPatch(t, original, patch)
	normal, err := json.Marshal(changed)
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal(normal, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, applied); diff != "" {
		t.Errorf("the patch and the changed object differ (-object +patch):\n%s", diff)
	}
	got := &corev1.Pod{}
	if err := json.Unmarshal(normal, got); err != nil {
		t.Fatal(err)
	}
	got.TypeMeta = metav1.TypeMeta{}
	result := out.Pod.DeepCopy()
	result.TypeMeta = metav1.TypeMeta{}
	if !reflect.DeepEqual(got, result) {
		t.Errorf("the patched pod differs (-want +got):\n%s", cmp.Diff(result, got))
	}
	for _, field := range []string{`"future":{"a":[1]}`, `"future":1`, `"future":"x"`, `"future":{}`, `"future":2`, `"future":4`, `"future":5`} {
		if !strings.Contains(string(normal), field) {
			t.Errorf("field %s was removed", field)
		}
	}
	if !strings.Contains(string(patch), "a~1b~0c") && strings.Contains(string(patch), "a/b~c") {
		t.Error("a key in a path of the patch is not escaped")
	}
}

// TestAgain checks that injecting a pod again applies a new version of the template and keeps the
// user's values.
func TestAgain(t *testing.T) {
	t.Parallel()
	pod := podWith(nil, nil)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: proxyName, Image: autoImage, Env: []corev1.EnvVar{{Name: "OWN", Value: "1"}}})
	first, err := newInjector(t, "", "", "").Inject(Request{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	second, err := newInjector(t, "", "{global: {tag: 2.0.0}}", "").Inject(Request{Pod: first.Pod})
	if err != nil {
		t.Fatal(err)
	}
	proxy := findContainer(proxyName, second.Pod)
	if proxy.Image != "outrigger/proxy:2.0.0" || !slices.ContainsFunc(proxy.Env, func(v corev1.EnvVar) bool { return v.Name == "OWN" && v.Value == "1" }) {
		t.Errorf("got image %s, variables %v", proxy.Image, proxy.Env)
	}
	if len(second.Pod.Spec.Containers) != 1 || len(second.Pod.Spec.InitContainers) != 2 {
		t.Errorf("got containers %v, init containers %v", namesOf(second.Pod.Spec.Containers), namesOf(second.Pod.Spec.InitContainers))
	}
}

// TestCNIValues sets the values that let the CNI plugin set the redirect rules, and checks that a
// container without capabilities validates them.
func TestCNIValues(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"{pilot: {cni: {enabled: true}}}", "{istio_cni: {enabled: true}}"} {
		v, err := ParseValues([]byte(values), "")
		if err != nil || !bool(v.Pilot.CNI.Enabled) {
			t.Errorf("%s: the CNI plugin is not enabled, error %v", values, err)
		}
	}
	in := newInjector(t, "", "{istio_cni: {enabled: true}}", "")
	result, err := in.Inject(Request{Pod: podWith(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	c := result.Pod.Spec.InitContainers[0]
	if c.Name != validationName || !slices.Contains(c.Args, "--run-validation") || len(c.SecurityContext.Capabilities.Add) > 0 || *c.SecurityContext.RunAsUser != proxyID {
		t.Errorf("first init container: got %v", c)
	}
}
