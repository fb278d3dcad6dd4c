// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package node

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseID(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in      string
		want    ID
		wantErr string
	}{
		"sidecar":       {in: "sidecar~10.0.0.1~a.b.default~default.svc.cluster.local", want: ID{"sidecar", "10.0.0.1", "a.b.default", "default.svc.cluster.local"}},
		"ipv6":          {in: "router~fd00::1~gw.istio-system~x", want: ID{"router", "fd00::1", "gw.istio-system", "x"}},
		"no address":    {in: "sidecar~~a.b~c", want: ID{"sidecar", "", "a.b", "c"}},
		"three parts":   {in: "sidecar~10.0.0.1~a.b", wantErr: "has 3 parts"},
		"unknown role":  {in: "ingress~10.0.0.1~a.b~c", wantErr: `role "ingress"`},
		"not an IP":     {in: "sidecar~host~a.b~c", wantErr: `"host" for an IP address`},
		"empty":         {in: "", wantErr: "has 1 parts"},
		"too many part": {in: "sidecar~1.1.1.1~a.b~c~d", wantErr: "has 5 parts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseID(tc.in)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if got.String() != tc.in {
				t.Errorf("String() = %q, want %q", got.String(), tc.in)
			}
		})
	}
	if got := (ID{Name: "a.b.ns"}).Namespace(); got != "ns" {
		t.Errorf("Namespace() = %q, want \"ns\"", got)
	}
	if got := (ID{Name: "a"}).Namespace(); got != "" {
		t.Errorf("Namespace() = %q, want none", got)
	}
}

func TestMetadataShapes(t *testing.T) {
	t.Parallel()
	in := &Metadata{
		ProxyConfig:     json.RawMessage(`{"concurrency":1}`),
		Name:            "pod-1",
		Labels:          map[string]string{"app": "<shop>"},
		InstanceIPs:     List{"10.0.0.1", "fd00::1"},
		PodPorts:        PodPorts{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}, {ContainerPort: 9}},
		DNSCapture:      true,
		EnvoyStatusPort: 15021,
		PilotSAN:        []string{"istiod.istio-system.svc"},
		Raw:             map[string]any{"EXTRA": "x", "NAME": "must not win", "NUMBER": 3.0},
	}
	got, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	// This is the format that Istio's control plane expects.
	want := `{"DNS_CAPTURE":"true","ENVOY_STATUS_PORT":15021,"EXTRA":"x","INSTANCE_IPS":"10.0.0.1,fd00::1",` +
		`"LABELS":{"app":"\u003cshop\u003e"},"NAME":"pod-1","NUMBER":3,"PILOT_SAN":["istiod.istio-system.svc"],` +
		`"POD_PORTS":"[{\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"},{\"containerPort\":9}]",` +
		`"PROXY_CONFIG":{"concurrency":1}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	back, err := ParseMetadata(got)
	if err != nil {
		t.Fatal(err)
	}
	delete(in.Raw, "NAME")
	if diff := cmp.Diff(in, back); diff != "" {
		t.Error(diff)
	}
	if got := Addresses(ID{IP: "1.2.3.4"}, back); !cmp.Equal(got, []string{"10.0.0.1", "fd00::1"}) {
		t.Errorf("Addresses() = %v, want those of the metadata", got)
	}
	if got := Addresses(ID{IP: "1.2.3.4"}, &Metadata{InstanceIPs: List{"nonsense"}}); !cmp.Equal(got, []string{"1.2.3.4"}) {
		t.Errorf("Addresses() = %v, want that of the ID", got)
	}
}

// TestMetadataEmptyFields checks that an empty field is rendered with its original value.
func TestMetadataEmptyFields(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(&Metadata{NodeName: "n", Raw: map[string]any{"DNS_CAPTURE": "false", "NODE_NAME": "loses"}})
	if want := `{"DNS_CAPTURE":"false","NODE_NAME":"n"}`; err != nil || string(got) != want {
		t.Errorf("got %s, error %v; want %s", got, err, want)
	}
}

func TestParseMetadata(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in      string
		want    *Metadata
		wantErr string
	}{
		"natural types": {
			in:   `{"DNS_CAPTURE":true,"INSTANCE_IPS":["1.1.1.1"],"POD_PORTS":[{"containerPort":1}],"ENVOY_STATUS_PORT":"15021"}`,
			want: &Metadata{DNSCapture: true, InstanceIPs: List{"1.1.1.1"}, PodPorts: PodPorts{{ContainerPort: 1}}, EnvoyStatusPort: 15021},
		},
		"empty values": {
			in:   `{"DNS_CAPTURE":"","INSTANCE_IPS":"","POD_PORTS":"","ENVOY_STATUS_PORT":"","PROXY_CONFIG":null,"NAME":null}`,
			want: &Metadata{InstanceIPs: List{}},
		},
		"false":             {in: `{"ENABLE_HBONE":"false"}`, want: &Metadata{}},
		"not an object":     {in: `[]`, wantErr: "not a JSON object"},
		"bad boolean":       {in: `{"DNS_CAPTURE":"yes"}`, wantErr: `node metadata DNS_CAPTURE: "yes" is not a boolean`},
		"bad ports":         {in: `{"POD_PORTS":"[{"}`, wantErr: "node metadata POD_PORTS: the value must be a JSON array"},
		"bad port":          {in: `{"ENVOY_STATUS_PORT":70000}`, wantErr: "node metadata ENVOY_STATUS_PORT"},
		"bad list":          {in: `{"INSTANCE_IPS":1}`, wantErr: "node metadata INSTANCE_IPS: the value must be one string with commas"},
		"bad label":         {in: `{"LABELS":{"a":1}}`, wantErr: "node metadata LABELS"},
		"unknown keys kept": {in: `{"X":{"y":[1,"z"]}}`, want: &Metadata{Raw: map[string]any{"X": map[string]any{"y": []any{1.0, "z"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseMetadata([]byte(tc.in))
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("sidecar~10.0.0.1~a.b~c")
	f.Add("~~~")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err == nil && id.String() != s {
			t.Errorf("ParseID(%q).String() = %q", s, id.String())
		}
	})
}

func FuzzParseMetadata(f *testing.F) {
	f.Add([]byte(`{"POD_PORTS":"[{\"containerPort\":80}]","DNS_CAPTURE":"true","X":1}`))
	f.Add([]byte(`{"INSTANCE_IPS":"a,b","PROXY_CONFIG":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseMetadata(data)
		if err != nil {
			return
		}
		first, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("rendering parsed metadata: %v", err)
		}
		again, err := ParseMetadata(first)
		if err != nil {
			t.Fatalf("the rendered metadata %s cannot be parsed: %v", first, err)
		}
		second, err := json.Marshal(again)
		if err != nil || string(first) != string(second) {
			t.Errorf("rendering is not stable: %s, then %s (error %v)", first, second, err)
		}
	})
}
