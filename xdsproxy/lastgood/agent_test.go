// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Types that the agent itself requests.
const (
	namesType = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	rootsType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
)

// table is a placeholder for a resource of the agent: only its bytes matter.
func table(typeURL, detail string) *anypb.Any {
	return &anypb.Any{TypeUrl: typeURL, Value: []byte(detail)}
}

// send sends resources of the agent's types, which have no names, and returns the nonce.
func (s *stream) send(typeURL string, resources ...*anypb.Any) string {
	s.t.Helper()
	s.n++
	nonce := fmt.Sprint("own", s.n)
	if !s.delta {
		s.rec.Response(frame(s.t, &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: nonce, Resources: resources}))
		return nonce
	}
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, RemovedResources: []string{""}}
	for _, a := range resources {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Version: nonce, Resource: a})
	}
	s.rec.Response(frame(s.t, r))
	return nonce
}

// agentTables returns the stored resources of the agent's types.
func agentTables(t *testing.T, s *Store) map[string]string {
	t.Helper()
	st, err := s.load(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.file.Close() }() // read-only: closing cannot lose data
	got := map[string]string{}
	for typeURL := range st.types {
		if agents(typeURL) {
			got[typeURL] = "none"
		}
	}
	_, err = st.scan(func(p *resource) error {
		r := &discoveryv3.Resource{}
		if agents(p.typeURL) {
			if err := proto.Unmarshal(p.body, r); err != nil {
				return err
			}
			got[p.typeURL] = string(r.GetResource().GetValue())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestAgentTypes checks that the store keeps what the agent uses: the first resource of the newest
// response that is not empty.
func TestAgentTypes(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprintf("delta=%t", delta), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := config(t)
				store := open(t, cfg)
				stop := run(t, store)
				s := newStream(t, store, delta)
				s.give(clusterType, cluster("a", "1"))
				s.give(listenerType, listener("l", "1"))
				s.ask(namesType)
				s.ask(rootsType)
				pass(5 * time.Second)
				if err := store.Usable(); err == nil {
					t.Error("a state was stored although a requested table is missing")
				}
				s.ack(namesType, s.send(namesType, table(namesType, "first"), table(namesType, "not used")), "")
				s.ack(rootsType, s.send(rootsType), "")
				check := func(what string, want map[string]string) {
					t.Helper()
					pass(5 * time.Second)
					if diff := cmp.Diff(want, agentTables(t, store)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", what, diff)
					}
				}
				check("at first", map[string]string{namesType: "first", rootsType: "none"})
				s.ack(namesType, s.send(namesType, table(namesType, "second")), "")
				s.ack(namesType, s.send(namesType), "")
				check("nothing after something", map[string]string{namesType: "second", rootsType: "none"})
				s.ack(namesType, s.send(namesType, table(namesType, "third")), "this one is bad")
				s.ack(rootsType, s.send(rootsType, table(rootsType, "roots")), "")
				check("after a rejection", map[string]string{namesType: "second", rootsType: "roots"})
				if diff := cmp.Diff(map[string]string{"a": "1"}, contentsOfType(t, store, clusterType)); diff != "" {
					t.Errorf("clusters (-want +got):\n%s", diff)
				}
				s.rec.Close()

				// The control plane is connected again but has not sent anything yet.
				s = newStream(t, store, delta)
				s.ask(namesType)
				s.ask(rootsType)
				s.ack(namesType, s.send(namesType), "")
				s.ack(rootsType, s.send(rootsType, table(rootsType, "roots")), "bad from the beginning")
				s.give(clusterType, cluster("a", "2"))
				s.give(listenerType, listener("l", "2"))
				pass(patience)
				check("on another stream", map[string]string{namesType: "second", rootsType: "roots"})
				if diff := cmp.Diff(map[string]string{"a": "2"}, contentsOfType(t, store, clusterType)); diff != "" {
					t.Errorf("clusters (-want +got):\n%s", diff)
				}
				stop()
			})
		})
	}
}

func contentsOfType(t *testing.T, s *Store, typeURL string) map[string]string {
	t.Helper()
	return stored(t, s)[typeURL]
}

// TestServeAgentTypes checks that the agent receives its own types, and no response for a type that
// is not stored.
func TestServeAgentTypes(t *testing.T) {
	t.Parallel()
	store := keep(t, config(t), func(s *stream) {
		something(s)
		s.ask(namesType)
		s.ack(namesType, s.send(namesType, table(namesType, "names")), "")
	})
	for _, delta := range []bool{true, false} {
		d := serve(t, store, delta)
		ask := func(typeURL, nonce string) {
			t.Helper()
			if delta {
				d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce})
			} else {
				d.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce})
			}
		}
		ask(rootsType, "")
		d.silent()
		ask(namesType, "")
		nonce, value := "", ""
		if delta {
			r := &discoveryv3.DeltaDiscoveryResponse{}
			if err := proto.Unmarshal(d.answer(), r); err != nil || len(r.GetResources()) != 1 {
				t.Fatalf("%v, %v", r, err)
			}
			nonce, value = r.GetNonce(), string(r.GetResources()[0].GetResource().GetValue())
		} else {
			r := &discoveryv3.DiscoveryResponse{}
			if err := proto.Unmarshal(d.answer(), r); err != nil || len(r.GetResources()) != 1 {
				t.Fatalf("%v, %v", r, err)
			}
			nonce, value = r.GetNonce(), string(r.GetResources()[0].GetValue())
		}
		if value != "names" {
			t.Errorf("delta=%t: the names are %q", delta, value)
		}
		ask(namesType, nonce)
		d.silent()
	}
}
