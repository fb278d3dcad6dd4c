// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"fmt"
	"net/http"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

func (c *checker) redirect(r *networkingv1alpha3.HTTPRedirect, path string) {
	if r == nil {
		return
	}
	if r.GetUri() == "" && r.GetAuthority() == "" && r.GetScheme() == "" && r.GetPrefixRewrite() == "" &&
		r.GetRedirectPort() == nil {
		c.errorf(path, "leads nowhere: write uri, authority, scheme or port")
	}
	if r.GetUri() != "" && r.GetPrefixRewrite() != "" {
		c.errorf(path+".prefixRewrite", "and uri exclude each other: remove one")
	}
	if s := r.GetScheme(); s != "" && s != "http" && s != "https" {
		c.errorf(path+".scheme", "is %s: write http or https", quote(s))
	}
	if p, ok := r.GetRedirectPort().(*networkingv1alpha3.HTTPRedirect_Port); ok {
		c.port(p.Port, path+".port")
	}
	switch code := r.GetRedirectCode(); code {
	case 0, http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		c.errorf(path+".redirectCode", "is %d: write 301, 302, 303, 307 or 308", code)
	}
}

const maxBody = 1 << 20

func (c *checker) directResponse(r *networkingv1alpha3.HTTPDirectResponse, path string) {
	if r == nil {
		return
	}
	if s := r.GetStatus(); s < 200 || s > 599 {
		c.errorf(path+".status", "is %d: write a status between 200 and 599", s)
	}
	if size := max(len(r.GetBody().GetString_()), len(r.GetBody().GetBytes())); size > maxBody {
		c.errorf(path+".body", "has %d bytes: at most %d are allowed", size, maxBody)
	}
}

func (c *checker) rewrite(r *networkingv1alpha3.HTTPRoute, path string) {
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
	if w.GetAuthority() == "" {
		return
	}
	for name := range sorted(r.GetHeaders().GetRequest().GetSet()) {
		if isAuthority(name) {
			c.errorf(path+".rewrite.authority", "and headers.request.set[%s] set the same thing: remove one", name)
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
		for name := range sorted(side.ops.GetSet()) {
			if side.name == "request" && isAuthority(name) {
				continue
			}
			c.operationName(name, at+".set["+name+"]")
		}
		for name := range sorted(side.ops.GetAdd()) {
			c.operationName(name, at+".add["+name+"]")
		}
		for i, name := range side.ops.GetRemove() {
			c.operationName(name, index(at+".remove", i))
		}
	}
}

func (c *checker) operationName(name, path string) {
	switch {
	case strings.HasPrefix(name, ":"):
		c.errorf(path, "is a pseudo header: use rewrite instead")
	case strings.EqualFold(name, "host"):
		c.errorf(path, "cannot change the host: use headers.request.set or rewrite.authority")
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
		c.errorf(path+".attempts", "is %d: write 0 for no retries, or how many there may be", r.GetAttempts())
	}
	if r.GetAttempts() == 0 && hasAny(r) {
		c.errorf(path, "has no attempts, so the other fields have no effect: write attempts or remove them")
	}
	c.duration(r.GetBackoff(), path+".backoff")
	c.durationOrZero(r.GetPerTryTimeout(), path+".perTryTimeout")
	if r.GetRetryOn() == "" {
		return
	}
	for word := range strings.SplitSeq(r.GetRetryOn(), ",") {
		word = strings.TrimSpace(word)
		var status int
		if n, err := fmt.Sscanf(word, "%d", &status); err == nil && n == 1 && digits.MatchString(word) {
			if status < 100 || status > 599 {
				c.errorf(path+".retryOn", "holds %s: it is no HTTP status", quote(word))
			}
			continue
		}
		if word == "" || !strings.Contains(retryConditions, " "+word+" ") {
			c.errorf(path+".retryOn", "holds %s: write status codes and any of %s, with commas between them",
				quote(word), strings.Join(strings.Fields(retryConditions), ", "))
		}
	}
}
