// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// randomly fills messages with what users and attackers write.
type randomly struct{ *rand.Rand }

// randomStrings are valid in some fields and invalid in others.
var randomStrings = []string{
	"", "a", "/", "/a", "/a/b/", "a?b#c", "//", "shop", "one.default.svc.cluster.local", "nobody", "*", ".*", "a(b)?", "(", "[", `\`, `\1`, `\9`, `\p{Letter}`,
	"x-a", "X-A", ":path", ":authority", "Host", "host", "x y", "a\nb", "a\x00b", "a\xffb", "ä", "%", "%REQ(x)%", "%REQ(", "%%", "100%",
	"5xx,503", "5xx", "retriable-headers", "nonsense,", "https", "http", "GET", "POST", "mesh", "edge", "other", "default", "v1", "empty",
	"@request.auth.claims.sub", "@request.auth.claims[a][b]", "@request.auth.claims.", "UNAVAILABLE", "14", "https://a.test", "a,b", "x\r\ny: z",
	"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
}

var randomNumbers = []int64{0, 1, 2, 50, 80, 100, 200, 301, 302, 418, 503, 599, 600, 8080, 65535, 65536, 1<<31 - 1, 1<<32 - 1, -1, -1 << 31}

func (r randomly) text() string { return randomStrings[r.IntN(len(randomStrings))] }

func (r randomly) number() int64 { return randomNumbers[r.IntN(len(randomNumbers))] }

// fill sets some of the fields of a message.
func (r randomly) fill(m protoreflect.Message, depth int) {
	if d, ok := m.Interface().(interface{ AsDuration() time.Duration }); ok && d != nil {
		m.Set(m.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64([]int64{0, 1, 3600, -1, 1 << 62, 10_000_000_000}[r.IntN(6)]))
		m.Set(m.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOfInt32([]int32{0, 1, 5_000_000, -1, 2_000_000_000}[r.IntN(5)]))
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		// A route has one action; most of the other fields are set now and then.
		if r.IntN(3) > 0 || depth > 6 {
			continue
		}
		switch {
		case fd.IsMap():
			for range 1 + r.IntN(2) {
				key := protoreflect.ValueOfString(r.text()).MapKey()
				if fd.MapValue().Message() != nil {
					value := m.Mutable(fd).Map().NewValue()
					r.fill(value.Message(), depth+1)
					m.Mutable(fd).Map().Set(key, value)
				} else {
					m.Mutable(fd).Map().Set(key, protoreflect.ValueOfString(r.text()))
				}
			}
		case fd.IsList():
			for range 1 + r.IntN(2) {
				if fd.Message() != nil {
					value := m.Mutable(fd).List().NewElement()
					r.fill(value.Message(), depth+1)
					m.Mutable(fd).List().Append(value)
				} else {
					m.Mutable(fd).List().Append(r.scalar(fd))
				}
			}
		case fd.Message() != nil:
			r.fill(m.Mutable(fd).Message(), depth+1)
		default:
			m.Set(fd, r.scalar(fd))
		}
	}
}

func (r randomly) scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(r.text())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(r.text()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(4)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(r.number()))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(r.number()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, 0.00001, 0.5, 50, 100, 101, -1}[r.IntN(7)])
	default:
		panic(fd.FullName())
	}
}

// route fills a route that has one action, as all valid routes do.
func (r randomly) route() *networkingv1alpha3.HTTPRoute {
	out := &networkingv1alpha3.HTTPRoute{}
	r.fill(out.ProtoReflect(), 0)
	if r.IntN(4) > 0 {
		out.Redirect, out.DirectResponse, out.Delegate = nil, nil, nil
		if len(out.Route) == 0 {
			out.Route = []*networkingv1alpha3.HTTPRouteDestination{to("shop", int32(r.number()))}
		}
	}
	return out
}

// TestRandomRoutes builds routes from objects without validation, and passes all of them to the
// real Envoy at once: it would reject all because of one.
func TestRandomRoutes(t *testing.T) {
	t.Parallel()
	const objects = 600
	for _, semantics := range []string{"", "gateway"} {
		t.Run("semantics "+semantics, func(t *testing.T) {
			t.Parallel()
			all := decode(t, `
kind: ServiceEntry
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.default.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 8080, name: grpc, protocol: GRPC}]
---
kind: DestinationRule
metadata: {name: shop, namespace: default}
spec: {host: shop, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: "x y"}}}, subsets: [{name: v1, labels: {version: v1}}]}
`)
			r := randomly{rand.New(rand.NewPCG(7, uint64(len(semantics))))}
			for i := range objects {
				spec := &networkingv1alpha3.VirtualService{Hosts: []string{fmt.Sprintf("h%d.test", i)}}
				for range 3 {
					spec.Http = append(spec.Http, r.route())
				}
				if i%5 == 0 {
					spec.Hosts = nil
				} else if i%5 == 1 {
					spec.Http[0].Delegate = &networkingv1alpha3.Delegate{Name: fmt.Sprintf("o%d", i-1)}
				}
				all = append(all, &model.Config{
					Key:         model.Key{Kind: model.VirtualService, Namespace: "default", Name: fmt.Sprintf("o%d", i)},
					Annotations: map[string]string{"internal.istio.io/route-semantics": semantics}, Spec: spec,
				})
			}
			before := make([]proto.Message, len(all))
			for i, o := range all {
				before[i] = proto.Clone(o.Spec.(proto.Message))
			}
			mesh := snapshot.Build(nil, inputOf(all, nil), model.Change{All: true})
			proxy := proxyAt("127.77.55.4")
			proxy.HTTPProxyPort = 15080
			first := New(Config{}).Generate(mesh, proxy, xds.TypeRoute)
			again := New(Config{}).Generate(snapshot.Build(nil, inputOf(all, nil), model.Change{All: true}), proxy, xds.TypeRoute)
			if first.Version != again.Version || len(first.Problems) != len(again.Problems) {
				t.Error("two builds of the same objects differ")
			}
			for i, o := range all {
				if !proto.Equal(before[i], o.Spec.(proto.Message)) {
					t.Errorf("%s was written to", o.Key)
				}
			}
			served, refused := 0, 0
			for _, vh := range unpack(t, first.Get(httpProxyRoute)).(*routev3.RouteConfiguration).GetVirtualHosts() {
				for _, route := range vh.GetRoutes() {
					if served++; route.GetName() == "invalid" {
						refused++
					}
				}
			}
			if served < objects/2 || refused == 0 || refused > served*3/4 {
				t.Errorf("%d routes, %d of them refused: the objects say nothing", served, refused)
			}
			validateWithEnvoy(t, envoytest.Binary(t), mesh, proxy)
		})
	}
}
