// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// Authorizer is an extension provider that decides about requests: envoyExtAuthzHttp or
// envoyExtAuthzGrpc.
type Authorizer interface {
	GetService() string
	GetPort() uint32
	GetTimeout() *durationpb.Duration
	GetFailOpen() bool
	GetClearRouteCache() bool
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
}

// AuthorizerOf returns the authorizer of an extension provider, or nil if it is of another kind.
func AuthorizerOf(provider *meshv1alpha1.MeshConfig_ExtensionProvider) Authorizer {
	if a := provider.GetEnvoyExtAuthzHttp(); a != nil {
		return a
	}
	if a := provider.GetEnvoyExtAuthzGrpc(); a != nil {
		return a
	}
	return nil
}

// ProviderService returns the host of the service that an extension provider names, and its namespace
// if it is given.
func ProviderService(service string) (namespace, host string) {
	namespace, host, ok := strings.Cut(service, "/")
	if !ok {
		return "", namespace
	}
	return namespace, host
}

// CheckAuthorizer checks an extension provider. The error lists all problems; each line names the
// field, its value and the cure. Providers that are no authorizers are not checked.
func CheckAuthorizer(provider *meshv1alpha1.MeshConfig_ExtensionProvider) error {
	a := AuthorizerOf(provider)
	if a == nil {
		return nil
	}
	kind := "envoyExtAuthzGrpc"
	if provider.GetEnvoyExtAuthzHttp() != nil {
		kind = "envoyExtAuthzHttp"
	}
	c := &authorizerCheck{at: fmt.Sprintf("extensionProviders[%q].%s.", provider.GetName(), kind)}
	c.shared(a)
	if h := provider.GetEnvoyExtAuthzHttp(); h != nil {
		c.http(h)
	}
	return errors.Join(c.errs...)
}

// authorizerCheck collects the problems of one authorizer.
type authorizerCheck struct {
	at   string // the path of the authorizer
	errs []error
}

func (c *authorizerCheck) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(c.at+format, args...))
}

func (c *authorizerCheck) shared(a Authorizer) {
	namespace, host := ProviderService(a.GetService())
	if !isDomain(host) || strings.Contains(a.GetService(), "/") && !isDomain(namespace) {
		c.fail("service is %q; it must be the full host of a service, such as authz.default.svc.cluster.local, or namespace/host", a.GetService())
	}
	if p := a.GetPort(); p < 1 || p > 65535 {
		c.fail("port is %d; it must be from 1 to 65535", p)
	}
	if d := a.GetTimeout(); d != nil && (d.CheckValid() != nil || d.AsDuration() < time.Millisecond) {
		c.fail("timeout is %s; it must be at least 1ms", spell(d))
	}
	if s := a.GetStatusOnError(); s != "" && !isStatus(s) {
		c.fail("statusOnError is %q; it must be the number of an HTTP status, such as 503", s)
	}
	if b := a.GetIncludeRequestBodyInCheck(); b != nil && b.GetMaxRequestBytes() == 0 {
		c.fail("includeRequestBodyInCheck.maxRequestBytes is 0; it must be at least 1; remove includeRequestBodyInCheck to send no body")
	}
}

func (c *authorizerCheck) http(a *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) {
	if p := a.GetPathPrefix(); p != "" && (p[0] != '/' || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r > '~' || r == '?' || r == '#' })) {
		c.fail("pathPrefix is %q; it must start with \"/\" and consist of printable characters without \"?\" and \"#\"", p)
	}
	for _, list := range []struct {
		field    string
		patterns []string
	}{
		{"includeRequestHeadersInCheck", a.GetIncludeRequestHeadersInCheck()},
		{"includeHeadersInCheck", a.GetIncludeHeadersInCheck()}, //lint:ignore SA1019 mesh configs may still contain it
		{"headersToUpstreamOnAllow", a.GetHeadersToUpstreamOnAllow()},
		{"headersToDownstreamOnDeny", a.GetHeadersToDownstreamOnDeny()},
		{"headersToDownstreamOnAllow", a.GetHeadersToDownstreamOnAllow()},
	} {
		for i, p := range list.patterns {
			name := strings.TrimSuffix(p, "*")
			if name == p {
				name = strings.TrimPrefix(p, "*")
			}
			if !isHeaderName(name) || strings.Contains(name, "*") {
				c.fail("%s[%d] is %q; it must be the name of a header, \"start*\" or \"*end\"", list.field, i, p)
			}
		}
	}
	added := a.GetIncludeAdditionalHeadersInCheck()
	for _, name := range slices.Sorted(maps.Keys(added)) {
		if !isHeaderName(name) {
			c.fail("includeAdditionalHeadersInCheck has the name %q; it must be the name of a header", name)
		}
		if strings.ContainsFunc(added[name], func(r rune) bool { return r < ' ' && r != '\t' || r == '\x7f' }) {
			c.fail("includeAdditionalHeadersInCheck[%q] contains a control character, remove it", name)
		}
	}
}

// isStatus reports whether Envoy can answer with the status.
func isStatus(s string) bool {
	n, err := strconv.Atoi(s)
	if err != nil || n < http.StatusOK || http.StatusText(n) == "" {
		return false
	}
	switch n {
	case http.StatusTeapot, http.StatusTooEarly, http.StatusUnavailableForLegalReasons:
		return false
	}
	return true
}

// isHeaderName reports whether s is a token of RFC 9110.
func isHeaderName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
