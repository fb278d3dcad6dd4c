// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// applyFilters sets the route's configuration of the HTTP filters of the listener.
func applyFilters(route *routev3.Route, in *networkingv1alpha3.HTTPRoute) error {
	fault, err := faultOf(in.GetFault())
	if err != nil {
		return err
	}
	cors, err := corsOf(in.GetCorsPolicy())
	if err != nil {
		return err
	}
	if fault == nil && cors == nil {
		return nil
	}
	if route.TypedPerFilterConfig == nil {
		route.TypedPerFilterConfig = make(map[string]*anypb.Any)
	}
	if fault != nil {
		route.TypedPerFilterConfig[envoyconf.FaultFilter] = envoyconf.Pack(fault)
	}
	if cors != nil {
		route.TypedPerFilterConfig[envoyconf.CORSFilter] = envoyconf.Pack(cors)
	}
	return nil
}

// session returns the configuration that keeps the requests of a client at one endpoint of a service, or
// of another service if the first has no persistent sessions.
func (b *Builder) session(services ...*model.Service) map[string]*anypb.Any {
	if b.Proxy.Proxyless {
		return nil
	}
	for _, svc := range services {
		config, err := envoyconf.Session(svc)
		switch {
		case config == nil && err == nil:
			continue
		case !b.Sessions:
			b.report(model.Problem{Object: svc.Source, Warning: true, Reason: "the label of persistent sessions has no effect without PILOT_ENABLE_PERSISTENT_SESSION_FILTER=true at the control plane"})
			return nil
		case err != nil:
			b.report(model.Problem{Object: svc.Source, Warning: true, Reason: err.Error()})
			return nil
		}
		b.sources.Add(svc.Source)
		return map[string]*anypb.Any{envoyconf.SessionFilter: config}
	}
	return nil
}

// faultOf converts a fault injection. It returns nil if there is no fault to inject.
func faultOf(in *networkingv1alpha3.HTTPFaultInjection) (*faultv3.HTTPFault, error) {
	out := &faultv3.HTTPFault{}
	if delay := in.GetDelay(); delay != nil {
		if d, ok := envoyconf.Positive(delay.GetFixedDelay()); ok {
			//lint:ignore SA1019 users still write it
			percent := float64(delay.GetPercent())
			if delay.GetPercentage() != nil {
				percent = delay.GetPercentage().GetValue()
			}
			out.Delay = &faultcommonv3.FaultDelay{
				Percentage: fraction(percent), FaultDelaySecifier: &faultcommonv3.FaultDelay_FixedDelay{FixedDelay: d},
			}
		}
	}
	if abort := in.GetAbort(); abort != nil {
		a := &faultv3.FaultAbort{Percentage: fraction(abort.GetPercentage().GetValue())}
		switch e := abort.GetErrorType().(type) {
		case *networkingv1alpha3.HTTPFaultInjection_Abort_HttpStatus:
			a.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(max(e.HttpStatus, 0))}
			out.Abort = a
		case *networkingv1alpha3.HTTPFaultInjection_Abort_GrpcStatus:
			number, ok := code.Code_value[e.GrpcStatus]
			if !ok {
				return nil, fmt.Errorf("fault.abort.grpcStatus: %q is not a gRPC status", e.GrpcStatus)
			}
			a.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: uint32(number)}
			out.Abort = a
		}
	}
	if out.GetDelay() == nil && out.GetAbort() == nil {
		return nil, nil
	}
	if err := check(out); err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	return out, nil
}

// corsOf converts a CORS policy. It returns nil if there is none.
func corsOf(in *networkingv1alpha3.CorsPolicy) (*corsv3.CorsPolicy, error) {
	if in == nil {
		return nil, nil
	}
	out := &corsv3.CorsPolicy{
		AllowMethods:     strings.Join(in.GetAllowMethods(), ","),
		AllowHeaders:     strings.Join(in.GetAllowHeaders(), ","),
		ExposeHeaders:    strings.Join(in.GetExposeHeaders(), ","),
		AllowCredentials: in.GetAllowCredentials(),
		FilterEnabled:    &corev3.RuntimeFractionalPercent{DefaultValue: fraction(100)},
	}
	if in.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(max(in.GetMaxAge().GetSeconds(), 0), 10)
	}
	switch in.GetUnmatchedPreflights() {
	case networkingv1alpha3.CorsPolicy_FORWARD:
		out.ForwardNotMatchingPreflights = wrapperspb.Bool(true)
	case networkingv1alpha3.CorsPolicy_IGNORE:
		out.ForwardNotMatchingPreflights = wrapperspb.Bool(false)
	case networkingv1alpha3.CorsPolicy_UNSPECIFIED:
	}
	var err error
	if out.AllowOriginStringMatch, err = origins(in); err != nil {
		return nil, err
	}
	for _, f := range []struct{ name, value string }{
		{"allowMethods", out.GetAllowMethods()}, {"allowHeaders", out.GetAllowHeaders()}, {"exposeHeaders", out.GetExposeHeaders()},
	} {
		if strings.ContainsFunc(f.value, unicode.IsControl) {
			return nil, fmt.Errorf("corsPolicy.%s: %q cannot be the value of a header", f.name, f.value)
		}
	}
	if err := check(out); err != nil {
		return nil, fmt.Errorf("corsPolicy: %w", err)
	}
	return out, nil
}

// origins returns the allowed origins.
func origins(in *networkingv1alpha3.CorsPolicy) ([]*matcherv3.StringMatcher, error) {
	var out []*matcherv3.StringMatcher
	for _, o := range in.GetAllowOrigins() {
		m, err := stringMatch("corsPolicy.allowOrigins", o)
		if err != nil {
			return nil, err
		}
		if m != nil { // an empty matcher matches no origin
			out = append(out, m)
		}
	}
	if len(in.GetAllowOrigins()) == 0 {
		//lint:ignore SA1019 users still write it
		for _, o := range in.GetAllowOrigin() {
			out = append(out, envoyconf.Exactly(o))
		}
	}
	return out, nil
}
