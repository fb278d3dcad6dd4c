// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

func (c *checker) redirect(r *networkingv1alpha3.HTTPRedirect, path string) {
	if r == nil {
		return
	}
	if r.GetUri() == "" && r.GetAuthority() == "" && r.GetScheme() == "" && r.GetPrefixRewrite() == "" &&
		r.GetRedirectPort() == nil {
		c.errorf(path, "has no target: write uri, authority, scheme or port")
	}
	if r.GetUri() != "" && r.GetPrefixRewrite() != "" {
		c.errorf(path+".prefixRewrite", "and uri exclude each other: remove one")
	}
	if s := r.GetScheme(); s != "" && s != "http" && s != "https" {
		c.errorf(path+".scheme", "is %s: write http or https", field.Quote(s))
	}
	if p, ok := r.GetRedirectPort().(*networkingv1alpha3.HTTPRedirect_Port); ok {
		c.optionalPort(p.Port, path+".port")
	}
	switch code := r.GetRedirectCode(); code {
	case 0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		if code < 300 || code > 399 {
			c.errorf(path+".redirectCode", "is %d: write 301, 302, 303, 307 or 308", code)
			return
		}
		c.warnf(path+".redirectCode", "is %d, which proxies do not send: 301 is sent; write 301, 302, 303, 307 or 308", code)
	}
}

const (
	maxBody   = 1 << 20
	largeBody = 100 << 10
)

func (c *checker) directResponse(r *networkingv1alpha3.HTTPDirectResponse, path string) {
	if r == nil {
		return
	}
	c.httpStatus(int32(min(r.GetStatus(), math.MaxInt32)), path+".status")
	if size := max(len(r.GetBody().GetString_()), len(r.GetBody().GetBytes())); size > maxBody {
		c.errorf(path+".body", "has %d bytes: at most %d are allowed; serve it from an application", size, maxBody)
	} else if size > largeBody {
		c.warnf(path+".body", "has %d bytes, which every proxy receives with its routes: serve more than %d from an application", size, largeBody)
	}
}

func (c *checker) rewrite(r *networkingv1alpha3.HTTPRoute, path string) {
	c.authority(r, path)
	w := r.GetRewrite()
	if w == nil {
		return
	}
	if w.GetUri() == "" && w.GetAuthority() == "" && w.GetUriRegexRewrite() == nil {
		c.errorf(path+".rewrite", "is empty: write uri, uriRegexRewrite or authority")
	}
	if re := w.GetUriRegexRewrite(); re != nil {
		if w.GetUri() != "" {
			c.errorf(path+".rewrite.uri", "and uriRegexRewrite exclude each other: remove one")
		}
		c.regex(re.GetMatch(), path+".rewrite.uriRegexRewrite.match")
	}
	if re := w.GetUriRegexRewrite(); re != nil && re.GetRewrite() == "" {
		c.errorf(path+".rewrite.uriRegexRewrite.rewrite", "is empty: write the replacement of what match finds")
	}
}

// authority checks that a route sets the host of requests once.
func (c *checker) authority(r *networkingv1alpha3.HTTPRoute, path string) {
	first := ""
	set := func(at string) {
		if first != "" {
			c.errorf(path+"."+at, "and %s both set the host: remove one", first)
			return
		}
		first = at
	}
	if r.GetRewrite().GetAuthority() != "" {
		set("rewrite.authority")
	}
	for _, f := range []struct {
		name   string
		values map[string]string
	}{{"set", r.GetHeaders().GetRequest().GetSet()}, {"add", r.GetHeaders().GetRequest().GetAdd()}} {
		for name := range field.Sorted(f.values) {
			if isAuthority(name) {
				set(field.Key("headers.request."+f.name, name))
			}
		}
	}
}

func isAuthority(name string) bool {
	return strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority")
}

func (c *checker) headers(h *networkingv1alpha3.Headers, path string) {
	for _, side := range []struct {
		name string
		ops  *networkingv1alpha3.Headers_HeaderOperations
	}{{"request", h.GetRequest()}, {"response", h.GetResponse()}} {
		at := path + "." + side.name
		for _, f := range []struct {
			name   string
			values map[string]string
		}{{"set", side.ops.GetSet()}, {"add", side.ops.GetAdd()}} {
			for name, value := range field.Sorted(f.values) {
				where := field.Key(at+"."+f.name, name)
				if side.name != "request" || !isAuthority(name) {
					c.operationName(name, where)
				}
				if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
					c.errorf(where, "is %s: a header has no control characters; remove them", field.Quote(value))
				}
				if _, _, err := expression.Header(value); err != nil {
					c.errorf(where, "is %s: %s", field.Quote(value), err)
				}
			}
		}
		for i, name := range side.ops.GetRemove() {
			c.operationName(name, field.Index(at+".remove", i))
		}
	}
}

func (c *checker) operationName(name, path string) {
	switch {
	case strings.HasPrefix(name, ":"):
		c.errorf(path, "is a pseudo-header: use rewrite instead")
	case strings.EqualFold(name, "host"):
		c.errorf(path, "cannot change the host: use headers.request.set or rewrite.authority")
	case name != "" && !headerName.MatchString(name):
		c.warnf(path, "is not a header name, so the operation is left out: write letters, digits and \"-\"")
	default:
		c.headerName(name, path)
	}
}

// retryConditions are the words that retryOn may hold beside status codes.
const retryConditions = " 5xx gateway-error reset reset-before-request connect-failure envoy-ratelimited retriable-4xx" +
	" refused-stream retriable-status-codes retriable-headers http3-post-connect-failure" +
	" cancelled deadline-exceeded internal resource-exhausted unavailable "

func (c *checker) retries(r *networkingv1alpha3.HTTPRetry, path string) {
	if r == nil {
		return
	}
	if r.GetAttempts() < 0 {
		c.errorf(path+".attempts", "is %d: write 0 for no retries, or their maximum", r.GetAttempts())
	}
	switch set := r.GetPerTryTimeout() != nil || r.GetRetryOn() != "" || r.GetRetryRemoteLocalities() != nil; {
	case r.GetAttempts() != 0 || !hasAny(r):
	case set:
		c.errorf(path, "has no attempts, so the other fields have no effect: write attempts or remove them")
	default:
		c.warnf(path, "has no attempts, so the other fields have no effect: write attempts or remove them")
	}
	c.duration(r.GetBackoff(), path+".backoff")
	c.duration(r.GetPerTryTimeout(), path+".perTryTimeout")
	if r.GetRetryOn() == "" {
		return
	}
	for word := range strings.SplitSeq(r.GetRetryOn(), ",") {
		word = strings.TrimSpace(word)
		var status int
		if n, err := fmt.Sscanf(word, "%d", &status); err == nil && n == 1 && digits.MatchString(word) {
			if status < 100 || status > 599 {
				c.errorf(path+".retryOn", "contains %s: it is not an HTTP status", field.Quote(word))
			}
			continue
		}
		if word == "" || !strings.Contains(retryConditions, " "+word+" ") {
			c.errorf(path+".retryOn", "contains %s: write status codes and any of %s, separated by commas",
				field.Quote(word), strings.Join(strings.Fields(retryConditions), ", "))
		}
	}
}
