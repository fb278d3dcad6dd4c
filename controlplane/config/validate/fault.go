// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// grpcStatuses are the names that an abort may send.
const grpcStatuses = " OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED" +
	" RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED "

func (c *checker) faultInjection(f *networkingv1alpha3.HTTPFaultInjection, path string) {
	if f == nil {
		return
	}
	if f.GetDelay() == nil && f.GetAbort() == nil {
		c.errorf(path, "is empty: write delay or abort, or remove it")
	}
	if d := f.GetDelay(); d != nil {
		at := path + ".delay"
		c.percent(d.GetPercentage(), at+".percentage.value")
		switch d.GetHttpDelayType().(type) {
		case *networkingv1alpha3.HTTPFaultInjection_Delay_FixedDelay:
			c.duration(d.GetFixedDelay(), at+".fixedDelay")
		case *networkingv1alpha3.HTTPFaultInjection_Delay_ExponentialDelay:
			c.errorf(at+".exponentialDelay", "is not supported by any proxy: write fixedDelay")
		}
	}
	a := f.GetAbort()
	if a == nil {
		return
	}
	at := path + ".abort"
	c.percent(a.GetPercentage(), at+".percentage.value")
	switch v := a.GetErrorType().(type) {
	case nil:
		c.warnf(at, "sends no error: write httpStatus or grpcStatus")
	case *networkingv1alpha3.HTTPFaultInjection_Abort_HttpStatus:
		c.httpStatus(v.HttpStatus, at+".httpStatus")
	case *networkingv1alpha3.HTTPFaultInjection_Abort_GrpcStatus:
		if v.GrpcStatus == "" || !strings.Contains(grpcStatuses, " "+v.GrpcStatus+" ") {
			c.errorf(at+".grpcStatus", "is %s: write one of %s", field.Quote(v.GrpcStatus), strings.Join(strings.Fields(grpcStatuses), ", "))
		}
	case *networkingv1alpha3.HTTPFaultInjection_Abort_Http2Error:
		c.errorf(at+".http2Error", "is not supported by any proxy: write httpStatus or grpcStatus")
	}
}

// httpStatus checks the status of an answer.
func (c *checker) httpStatus(status int32, path string) {
	switch {
	case status < 200 || status > 600:
		c.errorf(path, "is %d: write a status between 200 and 599", status)
	case status == 600:
		c.warnf(path, "is 600, which proxies do not send: requests are answered with 503; write a status between 200 and 599")
	}
}

const httpMethods = " CONNECT DELETE GET HEAD OPTIONS PATCH POST PUT TRACE "

// anyOrigin reports whether a match takes every origin: proxies then answer with
// the one that asks, which browsers take with credentials, other than "*".
func anyOrigin(o *networkingv1alpha3.StringMatch) bool {
	return o.GetExact() == "*" || slices.Contains([]string{".*", ".+", "^.*$", "^.+$"}, o.GetRegex()) ||
		slices.Contains([]string{"http", "https", "http://", "https://"}, o.GetPrefix())
}

func (c *checker) cors(p *networkingv1alpha3.CorsPolicy, path string) {
	if p == nil {
		return
	}
	for i, o := range p.GetAllowOrigins() {
		at := field.Index(path+".allowOrigins", i)
		if p.GetAllowCredentials().GetValue() && anyOrigin(o) {
			c.warnf(at, "is any origin, and allowCredentials is true: every web site may send requests with the cookies of your users and read the responses; write the origins")
		}
		switch v := o.GetMatchType().(type) {
		case *networkingv1alpha3.StringMatch_Regex:
			c.regex(v.Regex, at+".regex")
		default:
			if o.GetExact() == "" && o.GetPrefix() == "" {
				c.errorf(at, "is empty: write exact, prefix or regex with an origin such as https://example.com")
			}
		}
	}
	for i, m := range p.GetAllowMethods() {
		if m != "*" && (m == "" || !strings.Contains(httpMethods, " "+m+" ")) {
			c.errorf(field.Index(path+".allowMethods", i), "is %s: write one of %s", field.Quote(m), strings.Join(strings.Fields(httpMethods), ", "))
		}
	}
	for _, f := range []struct {
		name    string
		headers []string
	}{{"allowHeaders", p.GetAllowHeaders()}, {"exposeHeaders", p.GetExposeHeaders()}} {
		for i, h := range f.headers {
			if h != "*" {
				c.headerName(h, field.Index(path+"."+f.name, i))
			}
		}
	}
	c.wholeSeconds(p.GetMaxAge(), path+".maxAge")
}
