// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// object returns an object with a spec in text format and the reference "namespace/name".
func object(t testing.TB, kind model.Kind, ref, spec string) *model.Config {
	t.Helper()
	namespace, name, _ := strings.Cut(ref, "/")
	c := &model.Config{Key: model.Key{Kind: kind, Namespace: namespace, Name: name}, Source: ref + ".yaml:1"}
	var m proto.Message = &networkingv1alpha3.ServiceEntry{}
	if kind == model.WorkloadEntry {
		m = &networkingv1alpha3.WorkloadEntry{}
	}
	if err := prototext.Unmarshal([]byte(spec), m); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	c.Spec = m
	return c
}

// build derives services from objects in canonical order.
func build(entries, workloads []*model.Config, unhealthy map[model.Key]struct{}) (*Services, []model.Problem) {
	s := Build(inputOf(entries, workloads, unhealthy))
	return s, s.Problems
}

func inputOf(entries, workloads []*model.Config, unhealthy map[model.Key]struct{}) Input {
	return Input{
		List: func(kind model.Kind) []*model.Config {
			if kind == model.WorkloadEntry {
				return workloads
			}
			return entries
		},
		Get: func(key model.Key) *model.Config {
			for _, c := range workloads {
				if c != nil && c.Key == key {
					return c
				}
			}
			return nil
		},
		Unhealthy: unhealthy,
	}
}

// keysOf returns the keys of WorkloadEntry objects.
func keysOf(refs ...string) map[model.Key]struct{} {
	keys := map[model.Key]struct{}{}
	for _, ref := range refs {
		namespace, name, _ := strings.Cut(ref, "/")
		keys[model.Key{Kind: model.WorkloadEntry, Namespace: namespace, Name: name}] = struct{}{}
	}
	return keys
}

// show formats services, endpoints and problems, one per line.
func show(s *Services, problems []model.Problem) string {
	var b strings.Builder
	for _, svc := range s.Sorted {
		fmt.Fprintf(&b, "%s/%s", svc.Namespace, svc.Hostname)
		for _, p := range svc.Ports {
			fmt.Fprintf(&b, " %s:%d:%s", p.Name, p.Number, p.Protocol)
		}
		b.WriteString(map[model.Resolution]string{
			model.ResolutionDNS: " dns", model.ResolutionDNSRoundRobin: " round robin", model.ResolutionDynamicDNS: " dynamic",
		}[svc.Resolution])
		if svc.Passthrough {
			b.WriteString(" passthrough")
		}
		if svc.External {
			b.WriteString(" external")
		}
		fmt.Fprintf(&b, " %v %v by %s\n", svc.Addresses, svc.SubjectAltNames, svc.Source.Name)
		for _, e := range s.Endpoints[svc.ServiceKey] {
			fmt.Fprintf(&b, "  %d -> %s:%d w%d %s/%s", e.ServicePort, e.Address, e.Port, e.Weight, e.Namespace, e.ServiceAccount)
			if e.MutualTLS {
				b.WriteString(" mtls")
			}
			if e.Locality != "" {
				b.WriteString(" at " + e.Locality)
			}
			if e.Workload != "" {
				b.WriteString(" " + e.Workload)
			}
			if e.Unhealthy {
				b.WriteString(" unhealthy")
			}
			b.WriteString("\n")
		}
	}
	for _, p := range problems {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// buildCase is one call of Build and its expected result.
type buildCase struct {
	name      string
	entries   map[string]string
	workloads map[string]string
	// unhealthy are the names of unhealthy WorkloadEntry objects.
	unhealthy []string
	want      string
}

// http is the text format of a port of a ServiceEntry.
const http = `ports {number: 80 name: "http" protocol: "HTTP"} `

func TestBuildInside(t *testing.T) {
	t.Parallel()
	checkBuild(t, []buildCase{
		{
			name: "ports and identities of endpoints",
			entries: map[string]string{"default/a": `hosts: "a.example" location: MESH_INTERNAL resolution: STATIC
				ports {number: 80 name: "http" protocol: "HTTP"} ports {number: 90 name: "grpc-x" target_port: 9090}
				endpoints {address: "10.0.0.2" ports {key: "http" value: 8080} service_account: "a"}
				endpoints {address: "10.0.0.1" weight: 5 locality: "r/z"}
				endpoints {address: "10.0.0.3" service_account: "a" labels {key: "security.istio.io/tlsMode" value: "disabled"}}
				endpoints {address: "10.0.0.4" labels {key: "security.istio.io/tlsMode" value: "istio"} labels {key: "istio-locality" value: "r.z.s"}}`},
			want: `default/a.example http:80:HTTP grpc-x:90:GRPC [] [] by a
  80 -> 10.0.0.1:80 w5 default/ at r/z
  80 -> 10.0.0.2:8080 w1 default/a mtls
  80 -> 10.0.0.3:80 w1 default/a
  80 -> 10.0.0.4:80 w1 default/ mtls at r/z/s
  90 -> 10.0.0.1:9090 w5 default/ at r/z
  90 -> 10.0.0.2:9090 w1 default/a mtls
  90 -> 10.0.0.3:9090 w1 default/a
  90 -> 10.0.0.4:9090 w1 default/ mtls at r/z/s
`,
		},
		{
			name: "selected workloads of the namespace",
			entries: map[string]string{"shop/a": `hosts: "a.example" location: MESH_INTERNAL resolution: STATIC ` + http +
				`workload_selector {labels {key: "app" value: "a"} labels {key: "tier" value: "web"}}`},
			workloads: map[string]string{
				"shop/a-1":  `address: "10.0.0.1" labels {key: "app" value: "a"} labels {key: "tier" value: "web"} service_account: "x"`,
				"shop/b-1":  `address: "10.0.0.2" labels {key: "app" value: "b"} labels {key: "tier" value: "web"}`,
				"shop/a-2":  `address: "10.0.0.3" labels {key: "app" value: "a"}`,
				"other/a-3": `address: "10.0.0.4" labels {key: "app" value: "a"} labels {key: "tier" value: "web"}`,
			},
			want: `shop/a.example http:80:HTTP [] [] by a
  80 -> 10.0.0.1:80 w1 shop/x mtls a-1
`,
		},
		{
			name: "unhealthy workloads",
			entries: map[string]string{"shop/a": `hosts: "a.example" location: MESH_INTERNAL resolution: STATIC
				ports {number: 80 name: "http"} ports {number: 90 name: "tcp"} workload_selector {labels {key: "app" value: "a"}}`},
			workloads: map[string]string{
				"shop/a-1": `address: "10.0.0.1" labels {key: "app" value: "a"} service_account: "x"`,
				"shop/a-2": `address: "10.0.0.2" labels {key: "app" value: "a"}`,
			},
			unhealthy: []string{"shop/a-1", "other/a-2", "shop/gone"},
			want: `shop/a.example http:80:HTTP tcp:90:TCP [] [] by a
  80 -> 10.0.0.1:80 w1 shop/x mtls a-1 unhealthy
  80 -> 10.0.0.2:80 w1 shop/ a-2
  90 -> 10.0.0.1:90 w1 shop/x mtls a-1 unhealthy
  90 -> 10.0.0.2:90 w1 shop/ a-2
`,
		},
		{
			name: "nothing selected, everything selected",
			entries: map[string]string{
				"default/a": `hosts: "a.example" location: MESH_INTERNAL resolution: DNS ` + http + `workload_selector {labels {key: "app" value: "none"}}`,
				"default/b": `hosts: "b.example" location: MESH_INTERNAL resolution: STATIC ` + http + `workload_selector {}`,
			},
			workloads: map[string]string{"default/w": `address: "10.0.0.1"`},
			want: `default/a.example http:80:HTTP dns [] [] by a
default/b.example http:80:HTTP [] [] by b
  80 -> 10.0.0.1:80 w1 default/ w
`,
		},
	})
}

func TestBuildExternalAndInvalid(t *testing.T) {
	t.Parallel()
	checkBuild(t, []buildCase{
		{
			name: "outside names",
			entries: map[string]string{
				"default/a": `hosts: "A.example" hosts: "b.example" resolution: DNS ports {number: 443 name: "tls" target_port: 8443}
					addresses: "10.0.0.1/32" addresses: "10.1.0.0/16" subject_alt_names: "a.example"`,
				"default/c": `hosts: "c.example" resolution: DNS ` + http + `endpoints {address: "c1.example" service_account: "c"}`,
			},
			want: `default/a.example tls:443:TLS dns external [10.0.0.1 10.1.0.0/16] [a.example] by a
  443 -> a.example:8443 w1 default/
default/b.example tls:443:TLS dns external [10.0.0.1 10.1.0.0/16] [a.example] by a
  443 -> b.example:8443 w1 default/
default/c.example http:80:HTTP dns external [] [] by c
  80 -> c1.example:80 w1 default/c mtls
`,
		},
		{
			name: "the older object has the host",
			entries: map[string]string{
				"default/a": `hosts: "a.example" resolution: DNS ` + http,
				"default/b": `hosts: "a.example" hosts: "b.example" resolution: DNS ` + http,
				"other/a":   `hosts: "a.example" resolution: DNS ` + http,
			},
			want: `default/a.example http:80:HTTP dns external [] [] by a
  80 -> a.example:80 w1 default/
other/a.example http:80:HTTP dns external [] [] by a
  80 -> a.example:80 w1 other/
default/b.example http:80:HTTP dns external [] [] by b
  80 -> b.example:80 w1 default/
default/b.yaml:1: ServiceEntry/default/b: spec.hosts names "a.example", which ServiceEntry/default/a defines already and which is older: remove the host from one of them
`,
		},
		{
			name: "addresses that cannot be used, or twice",
			entries: map[string]string{"default/a": `hosts: "a.example" location: MESH_INTERNAL resolution: STATIC ` + http +
				`workload_selector {labels {key: "app" value: "a"}}`},
			workloads: map[string]string{
				"default/a-1": `address: "10.0.0.1" labels {key: "app" value: "a"}`,
				"default/a-2": `address: "10.0.0.1" labels {key: "app" value: "a"}`,
				"default/a-3": `address: "host.example" labels {key: "app" value: "a"}`,
				"default/a-4": `address: "fe80:0::1" labels {key: "app" value: "a"}`,
			},
			want: `default/a.example http:80:HTTP [] [] by a
  80 -> 10.0.0.1:80 w1 default/ a-1
  80 -> fe80::1:80 w1 default/ a-4
default/a-3.yaml:1: WorkloadEntry/default/a-3: the address "host.example" cannot serve ServiceEntry/default/a: resolution STATIC allows only IP addresses; write one, or write resolution: DNS in the ServiceEntry
default/a.yaml:1: ServiceEntry/default/a: WorkloadEntry/default/a-2 serves port 80 at 10.0.0.1:80, as WorkloadEntry/default/a-1 does: each address can serve a port once
`,
		},
	})
}

func checkBuild(t *testing.T, cases []buildCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			entries := objects(t, model.ServiceEntry, tc.entries)
			workloads := objects(t, model.WorkloadEntry, tc.workloads)
			if diff := cmp.Diff(tc.want, show(build(entries, workloads, keysOf(tc.unhealthy...)))); diff != "" {
				t.Errorf("Build() (-want +got):\n%s", diff)
			}
		})
	}
}

// objects returns objects in canonical order.
func objects(t testing.TB, kind model.Kind, specs map[string]string) []*model.Config {
	t.Helper()
	var out []*model.Config
	for ref, spec := range specs {
		out = append(out, object(t, kind, ref, spec))
	}
	sortObjects(out)
	return out
}

func TestBuildKeepsCanonicalOrder(t *testing.T) {
	t.Parallel()
	young := object(t, model.ServiceEntry, "default/a", `hosts: "x.example" resolution: DNS`)
	old := object(t, model.ServiceEntry, "default/b", `hosts: "x.example" resolution: DNS`)
	young.Created = time.Unix(2000, 0)
	old.Created = time.Unix(1000, 0)
	list := []*model.Config{young, old}
	sortObjects(list)
	s, problems := build(list, nil, nil)
	if got := s.Sorted[0].Source.Name; got != "b" || len(problems) != 1 || problems[0].Object.Name != "a" {
		t.Errorf("the host belongs to %s, problems: %v; want b and a problem of a", got, problems)
	}
}

// TestMetadataLabels checks that the labels of an object take precedence over those of its spec.
func TestMetadataLabels(t *testing.T) {
	t.Parallel()
	we := object(t, model.WorkloadEntry, "default/w", `address: "10.0.0.1" labels {key: "app" value: "spec"} labels {key: "v" value: "1"}`)
	we.Labels = map[string]string{"app": "meta"}
	se := object(t, model.ServiceEntry, "default/s", `hosts: "s" resolution: STATIC ports {number: 1 name: "x"}
		workload_selector {labels {key: "app" value: "meta"} labels {key: "v" value: "1"}}`)
	s, _ := build([]*model.Config{se}, []*model.Config{we}, nil)
	endpoints := s.Endpoints[model.ServiceKey{Hostname: "s", Namespace: "default"}]
	if len(endpoints) != 1 || endpoints[0].Labels["app"] != "meta" {
		t.Errorf("endpoints: got %v, want one with app=meta", endpoints)
	}
}
