// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// fill sets random fields of a message to random values, most of them small.
func fill(rnd *rand.Rand, m protoreflect.Message, depth, rarity int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if rnd.IntN(rarity) != 0 || depth > 7 {
			continue
		}
		switch {
		case fd.IsMap():
			for range rnd.IntN(3) {
				m.Mutable(fd).Map().Set(value(rnd, fd.MapKey()).MapKey(), value(rnd, fd.MapValue()))
			}
		case fd.IsList():
			for range rnd.IntN(3) {
				if fd.Message() == nil {
					m.Mutable(fd).List().Append(value(rnd, fd))
				} else {
					fill(rnd, m.Mutable(fd).List().AppendMutable().Message(), depth+1, rarity)
				}
			}
		case fd.Message() != nil:
			fill(rnd, m.Mutable(fd).Message(), depth+1, rarity)
		default:
			m.Set(fd, value(rnd, fd))
		}
	}
}

func value(rnd *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	small := []int64{0, 1, 2, 5, 80, 100, 1009, 1 << 23, -1}[rnd.IntN(9)]
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rnd.IntN(2) == 0)
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(rnd.IntN(values.Len())).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(small))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(small)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(max(small, 0)))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(max(small, 0)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(small) / 2)
	}
	return protoreflect.ValueOfString([]string{"", "a", "eu/a/1", "us/*", "*", "x-user", "v1", "a~b", "kubernetes://a", "CONNECT", "spiffe://a/b", "1.2.3.4"}[rnd.IntN(12)])
}

// TestRandomRules runs the fuzz test with many seeds, some of which result in valid rules.
func TestRandomRules(t *testing.T) {
	t.Parallel()
	valid := 0
	for seed := range uint64(2000) {
		if testRule(t, seed) {
			valid++
		}
	}
	if valid < 100 {
		t.Errorf("%d of 2000 random rules are valid: too few to say anything", valid)
	}
}

// FuzzDestinationRule builds clusters from random rules.
func FuzzDestinationRule(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { testRule(t, seed) })
}

// testRule builds clusters from a random rule. It must not panic, and two builds must be equal.
// For valid rules, which it reports, the result must satisfy Envoy's validation rules.
func testRule(t *testing.T, seed uint64) (valid bool) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	spec := &networkingv1alpha3.DestinationRule{}
	fill(rnd, spec.ProtoReflect(), 0, 2+int(seed%6))
	spec.Host = "web.example.com"
	for i, s := range spec.GetSubsets() {
		s.Name = fmt.Sprintf("s%d", i)
	}
	obj := &model.Config{Key: model.Key{Kind: model.DestinationRule, Namespace: "default", Name: "web"}, Spec: spec}
	faults, _ := validate.Object(obj)
	rule := &snapshot.DestinationRule{Host: spec.GetHost(), Policy: spec.GetTrafficPolicy(), Subsets: spec.GetSubsets(), From: []*model.Config{obj}}
	for _, protocol := range []model.Protocol{model.ProtocolHTTP, model.ProtocolGRPC, model.ProtocolTCP, model.ProtocolUnsupported} {
		for _, subset := range []string{"", "s0"} {
			resolution := model.Resolution(rnd.IntN(int(model.ResolutionPassthrough)))
			src := Source{
				Service: &model.Service{ServiceKey: model.ServiceKey{Hostname: spec.GetHost(), Namespace: "default"}, Resolution: resolution, Passthrough: rnd.IntN(4) == 0},
				Port:    model.Port{Number: 80, Protocol: protocol}, Subset: subset, Rule: rule, Config: &meshv1alpha1.MeshConfig{},
				Viewer: Viewer{Router: rnd.IntN(2) == 0, Dialled: rnd.IntN(2) == 0, IPv6: rnd.IntN(2) == 0}, Secured: rnd.IntN(2) == 0,
			}
			if !src.Policy().Serves(src.Viewer) {
				continue
			}
			c := Outbound("x", src, &endpointv3.ClusterLoadAssignment{ClusterName: "x"})
			if !proto.Equal(c, Outbound("x", src, &endpointv3.ClusterLoadAssignment{ClusterName: "x"})) {
				t.Error("two clusters of the same rule differ")
			}
			if err := c.ValidateAll(); err != nil && len(faults) == 0 {
				t.Errorf("the rule may be written, its cluster may not be sent: %v\n%v", err, spec)
			}
			_ = src.Policy().Tunneling() // must not panic
			locality(t, rnd, src)
		}
	}
	return len(faults) == 0
}

// locality checks that Envoy accepts the endpoints of a random mesh: priorities without gaps, and
// weights that are set.
func locality(t *testing.T, rnd *rand.Rand, src Source) {
	t.Helper()
	places := []string{"", "eu", "eu/a", "eu/a/1", "us/a/1"}
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: "x"}
	behind := map[*endpointv3.LbEndpoint]*model.Endpoint{}
	for range rnd.IntN(5) {
		place := places[rnd.IntN(len(places))]
		group := &endpointv3.LocalityLbEndpoints{Locality: parseLocality(place)}
		for range 1 + rnd.IntN(3) {
			ep := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: envoyconf.SocketAddress("10.0.0.1", 80)}}}
			behind[ep] = &model.Endpoint{Locality: place, Labels: map[string]string{"a": "a", "v1": []string{"a", "b"}[rnd.IntN(2)]}}
			group.LbEndpoints = append(group.LbEndpoints, ep)
		}
		cla.Endpoints = append(cla.Endpoints, group)
	}
	proxy := &model.Proxy{Locality: places[rnd.IntN(len(places))], Labels: map[string]string{"a": "a", "v1": "a"}}
	ApplyLocality(cla, behind, src.Policy().Locality(src.Service, src.Config, proxy))
	highest := -1
	for _, g := range cla.GetEndpoints() {
		if p := int(g.GetPriority()); p > highest+1 {
			t.Errorf("priority %d follows %d", p, highest)
		} else {
			highest = max(highest, p)
		}
		if len(g.GetLbEndpoints()) == 0 {
			t.Error("a locality without endpoints")
		}
	}
	if err := cla.ValidateAll(); err != nil {
		t.Error(err)
	}
}
