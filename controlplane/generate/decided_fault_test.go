// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	actionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// misreading is a fault of the package that computes decisions: it reads a message of Envoy's
// configuration as another one.
type misreading struct {
	name string
	read func(proto.Message)
	// versions is added to the version of Envoy.
	versions int
}

func misreadings() []misreading {
	return []misreading{
		{name: "exclusions are ignored", read: func(m proto.Message) {
			switch m := m.(type) {
			case *rbacv3.Permission:
				if m.GetNotRule() != nil {
					m.Rule = &rbacv3.Permission_Any{Any: true}
				}
			case *rbacv3.Principal:
				if m.GetNotId() != nil {
					m.Identifier = &rbacv3.Principal_Any{Any: true}
				}
			}
		}},
		{name: "the first of several matchers is enough", read: func(m proto.Message) {
			if p, ok := m.(*rbacv3.Permission); ok && len(p.GetAndRules().GetRules()) > 1 {
				p.GetAndRules().Rules = p.GetAndRules().GetRules()[:1]
			}
		}},
		{name: "the first of several alternatives counts", read: func(m proto.Message) {
			if p, ok := m.(*rbacv3.Policy); ok {
				p.Permissions, p.Principals = p.GetPermissions()[:1], p.GetPrincipals()[:1]
			}
		}},
		{name: "case matters", read: func(m proto.Message) {
			if s, ok := m.(*matcherv3.StringMatcher); ok {
				s.IgnoreCase = false
			}
		}},
		{name: "ports are ignored", read: func(m proto.Message) {
			if p, ok := m.(*rbacv3.Permission); ok && p.GetDestinationPort() != 0 {
				p.Rule = &rbacv3.Permission_Any{Any: true}
			}
		}},
		{name: "nothing is denied", read: func(m proto.Message) {
			if r, ok := m.(*rbacv3.RBAC); ok && r.GetAction() == rbacv3.RBAC_DENY {
				r.Policies = nil
			}
		}},
		{name: "filters with a matcher are always skipped", read: func(m proto.Message) {
			if e, ok := m.(*matchingv3.ExtensionWithMatcher); ok {
				skip := &xdscorev3.TypedExtensionConfig{Name: "skip", TypedConfig: envoyconf.Pack(&actionv3.SkipFilter{})}
				e.XdsMatcher = &xdsmatcherv3.Matcher{
					MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{}},
					OnNoMatch:   &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{Action: skip}},
				}
			}
		}},
		{name: "paths are not normalized", read: func(m proto.Message) {
			if hcm, ok := m.(*hcmv3.HttpConnectionManager); ok {
				hcm.NormalizePath = nil
			}
		}},
		{name: "x-forwarded-for is read for a gateway", read: func(m proto.Message) {
			if hcm, ok := m.(*hcmv3.HttpConnectionManager); ok {
				hcm.UseRemoteAddress = wrapperspb.Bool(true)
			}
		}},
		{name: "repeated headers are those of another version", versions: 100},
	}
}

// misread returns what computes the decisions about a workload with a fault.
func (c *court) misread(t *testing.T, i int, fault misreading) *decision.Envoy {
	t.Helper()
	cfg := decision.Config{Minor: envoyMinor(t)}
	if fault.versions > 0 && cfg.Minor >= 38 {
		fault.versions = -cfg.Minor
	}
	cfg.Minor += fault.versions
	p := c.proxies[i]
	for _, r := range New(Config{}).Generate(p.mesh, p.proxy, xds.TypeListener).Resources {
		l := unpack(t, r).(*listenerv3.Listener)
		if fault.read != nil {
			rewrite(t, l.ProtoReflect(), fault.read)
		}
		cfg.Listeners = append(cfg.Listeners, l)
	}
	return decision.New(cfg)
}

// rewrite changes a message and all those within, also in typed configurations.
func rewrite(t *testing.T, m protoreflect.Message, change func(proto.Message)) {
	t.Helper()
	if a, ok := m.Interface().(*anypb.Any); ok {
		inner, err := a.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc([]proto.Message{&hcmv3.HttpConnectionManager{}, &matchingv3.ExtensionWithMatcher{}, &httprbacv3.RBAC{}, &networkrbacv3.RBAC{}}, a.MessageIs) {
			return
		}
		rewrite(t, inner.ProtoReflect(), change)
		if err := a.MarshalFrom(inner); err != nil {
			t.Fatal(err)
		}
		return
	}
	change(m.Interface())
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { rewrite(t, v.Message(), change); return true })
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				rewrite(t, v.List().Get(i).Message(), change)
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			rewrite(t, v.Message(), change)
		}
		return true
	})
}

// checkMisreadings checks that each fault leads to another verdict than Envoy's for one of the
// requests.
func (c *court) checkMisreadings(t *testing.T, verdicts []envoyVerdict) {
	t.Helper()
	for _, fault := range misreadings() {
		found := 0
		var faulty *decision.Envoy
		for n, v := range verdicts {
			if n == 0 || v.workload != verdicts[n-1].workload {
				faulty = c.misread(t, v.workload, fault)
			}
			got, err := faulty.Decide(v.request)
			if err != nil {
				t.Fatal(err)
			}
			if got.Allowed != v.permitted {
				found++
			}
		}
		t.Logf("%s: %d of %d verdicts differ", fault.name, found, len(verdicts))
		if found == 0 {
			t.Errorf("%s: not found by %d requests", fault.name, len(verdicts))
		}
	}
}

// envoyVerdict is what Envoy decided about a request.
type envoyVerdict struct {
	workload  int
	request   decision.Request
	permitted bool
}
