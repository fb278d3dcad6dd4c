// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// parse decodes an object from YAML.
func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

func showService(r *serviceRecord) string {
	s := r.service
	out := fmt.Sprintf("%s %v", s.Hostname, s.Addresses)
	for i, p := range s.Ports {
		out += fmt.Sprintf(" %s:%d:%s>%s%d", p.Name, p.Number, p.Protocol, r.targets[i].Name, r.targets[i].Number)
	}
	for _, mark := range []struct {
		name string
		is   bool
	}{{"headless", s.Headless}, {"passthrough", s.Passthrough}, {"dns", r.external()}, {"outside", s.External}, {"local", s.NodeLocal}, {string(s.Distribution), s.Distribution != ""}} {
		if mark.is {
			out += " " + mark.name
		}
	}
	for _, text := range []string{r.externalName, strings.Join(s.ExportTo, ","), strings.Join(s.ServiceAccounts, ","), strings.Join(s.SubjectAltNames, ",")} {
		if text != "" {
			out += " " + text
		}
	}
	for _, p := range r.problems {
		out += "\n" + p.String()
	}
	return out
}

func TestReadService(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ spec, annotations, want string }{
		"ports": {
			spec: `{clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd00::1"], ports: [{port: 80}, {name: grpc-x, port: 90, targetPort: api}, {name: x, appProtocol: kubernetes.io/h2c, port: 91, targetPort: 9}, {name: dns, port: 53, protocol: UDP}]}`,
			want: "a.shop.svc.test [10.96.0.1 fd00::1] :80:unsupported>80 grpc-x:90:GRPC>api0 x:91:HTTP2>9",
		},
		"appProtocol before the name": {
			spec: `{clusterIP: 10.96.0.1, ports: [{name: http, appProtocol: TCP, port: 1}, {name: http2-x, appProtocol: example.com/own, port: 2}, {name: x, appProtocol: grpc-web, port: 3}, {name: x-ws, appProtocol: kubernetes.io/ws, port: 4}]}`,
			want: "a.shop.svc.test [10.96.0.1] http:1:TCP>1 http2-x:2:unsupported>2 x:3:GRPC-Web>3 x-ws:4:HTTP>4",
		},
		"headless":        {spec: `{clusterIP: None, clusterIPs: [None], ports: [{name: http, port: 80}]}`, want: "a.shop.svc.test [] http:80:HTTP>80 headless passthrough"},
		"well-known port": {spec: `{clusterIP: 10.96.0.1, ports: [{name: db, port: 3306}]}`, want: "a.shop.svc.test [10.96.0.1] db:3306:TCP>3306"},
		"distribution":    {spec: `{clusterIP: 10.96.0.1, trafficDistribution: PreferClose}`, annotations: `{networking.istio.io/traffic-distribution: PreferSameNode}`, want: "a.shop.svc.test [10.96.0.1] PreferSameZone"},
		"annotated":       {spec: `{clusterIP: 10.96.0.1}`, annotations: `{networking.istio.io/traffic-distribution: PreferSameNode}`, want: "a.shop.svc.test [10.96.0.1] PreferSameNode"},
		"no distribution": {
			spec: `{clusterIP: 10.96.0.1}`, annotations: `{networking.istio.io/traffic-distribution: PreferFar}`,
			want: "a.shop.svc.test [10.96.0.1]\nService/shop/a: the traffic distribution is \"PreferFar\", which is unknown and has no effect: write PreferSameZone, PreferSameNode or PreferClose into spec.trafficDistribution",
		},
		"internal traffic": {spec: `{clusterIP: 10.96.0.1, internalTrafficPolicy: Local}`, want: "a.shop.svc.test [10.96.0.1] local"},
		"annotations": {
			spec: `{clusterIP: 10.96.0.1}`, want: "a.shop.svc.test [10.96.0.1] .,other one,two spiffe://x/y",
			annotations: `{networking.istio.io/exportTo: "., other", alpha.istio.io/kubernetes-serviceaccounts: "one,two,", alpha.istio.io/canonical-serviceaccounts: "spiffe://x/y"}`,
		},
		"a wrong annotation": {
			spec: `{clusterIP: 10.96.0.1}`, annotations: `{networking.istio.io/exportTo: "one two"}`,
			want: "a.shop.svc.test [10.96.0.1] one two\nService/shop/a: the annotation networking.istio.io/exportTo names \"one two\", which is not a namespace: write names, \".\" or \"*\", separated by commas",
		},
		"a wrong address": {spec: `{clusterIP: 10.96.0.300, ports: [{port: -1}, {port: 0}]}`, want: "a.shop.svc.test []"},
		"a name":          {spec: `{type: ExternalName, externalName: api.example.com., ports: [{port: 443}]}`, want: "a.shop.svc.test [] :443:unsupported>443 dns outside api.example.com"},
		"no host":         {spec: `{type: ExternalName}`, want: "a.shop.svc.test [] dns outside\nService/shop/a: spec.externalName is empty: the service has no endpoints; write a host"},
	} {
		s := parse[corev1.Service](t, "metadata: {name: a, namespace: shop, annotations: "+c.annotations+"}\nspec: "+c.spec)
		got := showService(readService("test", s))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReadSlice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ slice, want string }{
		"endpoints": {
			slice: `{metadata: {labels: {kubernetes.io/service-name: a}}, addressType: IPv4, ports: [{name: http, port: 8080}, {port: 9}, {name: all}, {name: dns, port: 53, protocol: UDP}], endpoints: [
				{addresses: [10.0.0.1], conditions: {ready: true}, nodeName: nd, zone: z, hostname: h, targetRef: {kind: Pod, name: p, uid: u}},
				{addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}},
				{addresses: [10.0.0.5], conditions: {ready: false, serving: false, terminating: true}},
				{addresses: [10.0.0.6], conditions: {ready: false, serving: true}},
				{addresses: [10.0.0.3, 10.0.0.4, x], targetRef: {kind: Node, name: n}}]}`,
			want: "a [{http 8080} { 9}] [{10.0.0.1 h p u nd z false} {10.0.0.2      true} {10.0.0.3      false} {10.0.0.4      false}]",
		},
		"of no service":       {slice: `{addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}]}`},
		"of names":            {slice: `{metadata: {labels: {kubernetes.io/service-name: a}}, addressType: FQDN, endpoints: [{addresses: [a.example]}]}`},
		"of several clusters": {slice: `{metadata: {labels: {kubernetes.io/service-name: a, multicluster.kubernetes.io/service-name: a}}, addressType: IPv4}`},
	} {
		got := ""
		if r := readSlice(parse[discoveryv1.EndpointSlice](t, c.slice)); r != nil {
			got = fmt.Sprint(r.service, " ", r.ports, " ", r.endpoints)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReadPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ pod, want string }{
		"ready":      {`{metadata: {uid: u}, spec: {nodeName: nd, serviceAccountName: s}, status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00:0::1"}], conditions: [{type: Ready, status: "True"}]}}`, "[10.0.0.1 fd00::1] s nd u ready"},
		"not ready":  {`{status: {podIP: 10.0.0.1, conditions: [{type: Ready, status: "False"}]}}`, "[10.0.0.1] default  "},
		"is ending":  {`{metadata: {deletionTimestamp: "2024-01-01T00:00:00Z"}, status: {podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}}`, "[10.0.0.1] default  "},
		"no address": {`{status: {podIP: none}}`, "[] default  "},
		"has ended":  {`{status: {phase: Failed, podIP: 10.0.0.1}}`, ""},
		"succeeded":  {`{status: {phase: Succeeded, podIP: 10.0.0.1}}`, ""},
	} {
		got := ""
		if r := readPod(parse[corev1.Pod](t, c.pod)); r != nil {
			if got = fmt.Sprint(r.addresses, " ", r.account, " ", r.node, " ", r.uid); r.ready {
				got += " ready"
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestKubeconfigCredentials checks that a kubeconfig from a Secret may not read files or run
// programs, unless the environment allows it.
func TestKubeconfigCredentials(t *testing.T) {
	t.Parallel()
	for user, way := range map[string]string{
		"{token: x}": "", "{client-certificate-data: eA==, client-key-data: eA==}": "",
		"{tokenFile: /x}": "tokenFile", "{client-certificate: /x}": "clientCertificate", "{client-key: /x}": "clientKey",
		"{exec: {command: /x, apiVersion: v1, interactiveMode: Never}}": "exec", "{auth-provider: {name: gcp}}": "gcp",
	} {
		config, err := clientcmd.Load([]byte("users: [{name: u, user: " + user + "}]"))
		if err != nil {
			t.Fatal(err)
		}
		err = harmless(config, nil)
		if (err == nil) != (way == "") || err != nil && !strings.Contains(err.Error(), "uses "+way+",") {
			t.Errorf("%s: got error %v, want one about %q", user, err, way)
		}
		if err := harmless(config, []string{way}); err != nil {
			t.Errorf("%s, allowed: got error %v", user, err)
		}
	}
	config, err := clientcmd.Load([]byte("clusters: [{name: c, cluster: {certificate-authority: /x}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if err := harmless(config, nil); err == nil || !strings.Contains(err.Error(), "certificateAuthority") {
		t.Errorf("an authority in a file: got error %v, want one about certificateAuthority", err)
	}
}

// inCluster runs a registry on a fake API server and passes each change to told.
func inCluster(t *testing.T, told func(model.Change)) (*Registry, *prometheus.Registry) {
	t.Helper()
	api, _ := newFake(t)
	reg := prometheus.NewRegistry()
	r, err := NewRegistry(RegistryConfig{
		Client: newClient(Config{}, api, api), Cluster: "c", Namespace: "istio-system", OnChange: told, Registerer: reg,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, reg
}

// TestSameEventsAreSkipped checks that events without new content cause no change, and are counted.
func TestSameEventsAreSkipped(t *testing.T) {
	t.Parallel()
	var changes []model.Key
	r, reg := inCluster(t, func(c model.Change) {
		for key := range c.Keys {
			changes = append(changes, key)
		}
	})
	f := r.join("c")
	m := f.member
	pods := &kind[*corev1.Pod, podRecord, *podRecord]{name: podsKind, read: readPod, set: m.setPod}
	slices := &kind[*discoveryv1.EndpointSlice, sliceRecord, *sliceRecord]{name: slicesKind, read: readSlice, set: m.setSlice}
	services := &kind[*corev1.Service, serviceRecord, *serviceRecord]{
		name: serviceKind, read: func(o *corev1.Service) *serviceRecord { return readService("test", o) },
		set: m.setService,
	}
	pods.following, slices.following, services.following = f, f, f
	pods.held, slices.held, services.held = map[types.NamespacedName]*podRecord{}, map[types.NamespacedName]*sliceRecord{}, map[types.NamespacedName]*serviceRecord{}
	r.members["c"], m.ready = m, true
	service := parse[corev1.Service](t, `{metadata: {name: a, namespace: shop}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`)
	slice := parse[discoveryv1.EndpointSlice](t, `{metadata: {name: a-1, namespace: shop, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, ports: [{name: "", port: 8080}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p}}]}`)
	pod := parse[corev1.Pod](t, `{metadata: {name: p, namespace: shop}, status: {podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}}`)
	relabelled, status, notReady := pod.DeepCopy(), pod.DeepCopy(), slice.DeepCopy()
	relabelled.Labels = map[string]string{"version": "2"}
	status.Status.Message, status.ResourceVersion = "x", "9"
	notReady.Endpoints[0].Conditions.Ready = new(bool)
	for _, err := range []error{
		pods.Add(pod),         // not selected
		services.Add(service), // Service
		slices.Add(slice),     // Endpoints
		slices.Update(slice.DeepCopy()),
		pods.Update(status),
		pods.Update(relabelled), // Endpoints
		slices.Update(notReady), // Endpoints
		slices.Update(notReady.DeepCopy()),
		services.Update(service.DeepCopy()),
		slices.Delete(notReady),
		services.Replace(nil, ""), // Service
		pods.Delete(pod),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, key := range changes {
		got = append(got, string(key.Kind))
	}
	if want := "Service Endpoints Endpoints Endpoints Service"; strings.Join(got, " ") != want {
		t.Errorf("changes: got %q, want %q", got, want)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP outrigger_control_kube_events_skipped_total Number of events of objects of clusters that changed nothing for any proxy, by kind.
# TYPE outrigger_control_kube_events_skipped_total counter
outrigger_control_kube_events_skipped_total{type="EndpointSlice"} 3
outrigger_control_kube_events_skipped_total{type="Pods"} 3
outrigger_control_kube_events_skipped_total{type="Services"} 1
`), "outrigger_control_kube_events_skipped_total"); err != nil {
		t.Error(err)
	}
	if len(m.users)+len(m.shards)+len(m.slices)+len(m.pods)+len(m.byAddress)+len(m.services) != 0 {
		t.Errorf("state of removed objects remains: %+v", m)
	}
}
