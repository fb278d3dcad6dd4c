// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// fill sets random fields of a value. It uses few different texts, so that objects refer to each
// other. Most of the texts are invalid for their field.
func fill(rnd *rand.Rand, v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		if rnd.IntN(3) > 0 && depth < 12 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(rnd, v.Elem(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(rnd, v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 || depth > 12 {
			return
		}
		n := rnd.IntN(3)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(rnd, v.Index(i), depth+1)
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.String:
		v.SetString([]string{
			"", "a", "b", "istio", "Gateway", "Service", "Secret", "HTTP", "HTTPS", "TLS", "TCP", "Same", "All", "Selector", "Exact", "PathPrefix", "RegularExpression",
			"RequestRedirect", "URLRewrite", "RequestMirror", "CORS", "RequestHeaderModifier", "ReplacePrefixMatch", "ReplaceFullPath", "Terminate", "Passthrough",
			"/a", "/", "//", "*", "*.a.test", "a.test", "GET", "1s", "-1s", "((", "gateway.networking.k8s.io", "\xff", "Hostname", "IPAddress", "127.77.64.9", Controller,
		}[rnd.IntN(42)])
	case reflect.Bool:
		v.SetBool(rnd.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt([]int64{0, 1, 80, 443, -1, 301, 1 << 30}[rnd.IntN(7)])
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(rnd.IntN(256)))
	}
}

// TestRandomObjects converts objects that the API server would reject. The conversion must not
// panic, two conversions must be equal, and each converted object must have a unique key and an
// origin.
func TestRandomObjects(t *testing.T) {
	t.Parallel()
	made := 0
	for seed := range uint64(1500) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		all := map[model.Kind][]*model.Config{
			model.GatewayClass: {{Key: model.Key{Kind: model.GatewayClass, Name: "istio"}, Spec: &gatewayv1.GatewayClassSpec{ControllerName: Controller}}},
		}
		for i := range 14 {
			kind := Kinds()[1+rnd.IntN(len(Kinds())-1)]
			sch, ok := schema.Of(kind)
			if !ok {
				t.Fatalf("kind %s is unknown", kind)
			}
			spec := sch.NewSpec()
			fill(rnd, reflect.ValueOf(spec).Elem(), 0)
			switch s := spec.(type) {
			case *gatewayv1.GatewaySpec:
				s.GatewayClassName = "istio"
			case *gatewayv1.HTTPRouteSpec:
				s.ParentRefs = append(s.ParentRefs, gatewayv1.ParentReference{Name: "a"})
			case *gatewayv1.GRPCRouteSpec:
				s.ParentRefs = append(s.ParentRefs, gatewayv1.ParentReference{Name: "a"})
			case *gatewayv1.TLSRouteSpec:
				s.ParentRefs = append(s.ParentRefs, gatewayv1.ParentReference{Name: "a"})
			case *gatewayv1.TCPRouteSpec:
				s.ParentRefs = append(s.ParentRefs, gatewayv1.ParentReference{Name: "a"})
			case *kubenetworkingv1.IngressSpec:
				s.IngressClassName = nil
			}
			name := []string{"a", "b", fmt.Sprint("o", i)}[rnd.IntN(3)]
			all[kind] = append(all[kind], &model.Config{Key: model.Key{Kind: kind, Namespace: "n", Name: name}, Created: time.Unix(int64(i), 0), Spec: spec})
		}
		in := input(t, "")
		in.List = func(kind model.Kind) []*model.Config { return all[kind] }
		in.Mesh.IngressControllerMode = 2 // DEFAULT
		r, again := Convert(in), Convert(in)
		if got, want := r.Objects, again.Objects; !reflect.DeepEqual(keysOf(got), keysOf(want)) {
			t.Fatalf("seed %d: two conversions differ: %v and %v", seed, keysOf(got), keysOf(want))
		}
		seen := map[model.Key]bool{}
		for _, list := range r.Objects {
			for _, o := range list {
				made++
				if _, known := r.Origin[o.Key]; seen[o.Key] || !known {
					t.Fatalf("seed %d: %s is a duplicate or has no origin", seed, o.Key)
				}
				seen[o.Key] = true
			}
		}
		for key, status := range r.Status {
			if _, differs := Merge(nil, status, time.Unix(1, 0)); differs {
				merged, _ := Merge(nil, status, time.Unix(1, 0))
				if _, differs = Merge(merged, status, time.Unix(99, 0)); differs {
					t.Fatalf("seed %d: the status of %s differs again after it was merged", seed, key)
				}
			}
		}
	}
	if made < 1000 {
		t.Errorf("only %d objects were converted, want 1000", made)
	}
}

func keysOf(all map[model.Kind][]*model.Config) map[model.Kind][]string {
	out := map[model.Kind][]string{}
	for kind, list := range all {
		for _, o := range list {
			out[kind] = append(out[kind], o.Name)
		}
	}
	return out
}
