// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"
	"slices"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"
)

// asked is a request as the model of AuthorizationPolicies reads it.
type asked struct {
	stream       bool   // sent to a port whose requests are not read
	identity     string // a SPIFFE ID without its scheme; empty in plaintext
	peer, client netip.Addr
	server       netip.Addr
	port, sni    string
	method       string
	host, path   string
	headers      map[string][]string // by name in lower case
	namespace    string              // of the policy that is applied
	domains      []string            // the trust domains of the mesh
	individually bool                // the values of a header that is sent several times are compared one by one
}

// permitted is the documented meaning of the AuthorizationPolicies of a workload.
func (q asked) permitted(policies []*securityv1beta1.AuthorizationPolicy) bool {
	allowing, allowed := false, false
	for _, p := range policies {
		refuses := p.GetAction() == securityv1beta1.AuthorizationPolicy_DENY
		matches := slices.ContainsFunc(p.GetRules(), func(r *securityv1beta1.Rule) bool { return q.matches(r, refuses) })
		if refuses && matches {
			return false
		}
		allowing, allowed = allowing || !refuses, allowed || !refuses && matches
	}
	return allowed || !allowing
}

func (q asked) matches(r *securityv1beta1.Rule, refuses bool) bool {
	from, to := len(r.GetFrom()) == 0, len(r.GetTo()) == 0
	for _, f := range r.GetFrom() {
		s := f.GetSource()
		from = from || q.has(refuses, false, q.isPrincipal, s.GetPrincipals(), s.GetNotPrincipals()) &&
			q.has(refuses, false, q.isNamespace, s.GetNamespaces(), s.GetNotNamespaces()) &&
			q.has(refuses, false, q.isDomain, s.GetTrustDomains(), s.GetNotTrustDomains()) &&
			q.has(refuses, false, q.isAccount, s.GetServiceAccounts(), s.GetNotServiceAccounts()) &&
			q.has(refuses, false, within(q.peer), s.GetIpBlocks(), s.GetNotIpBlocks()) &&
			q.has(refuses, false, within(q.client), s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks())
	}
	for _, t := range r.GetTo() {
		o := t.GetOperation()
		to = to || q.has(refuses, true, q.isHost, o.GetHosts(), o.GetNotHosts()) &&
			q.has(refuses, true, q.isMethod, o.GetMethods(), o.GetNotMethods()) &&
			q.has(refuses, true, q.isPath, o.GetPaths(), o.GetNotPaths()) &&
			q.has(refuses, false, func(v string, _ bool) bool { return v == q.port }, o.GetPorts(), o.GetNotPorts())
	}
	return from && to && !slices.ContainsFunc(r.GetWhen(), func(w *securityv1beta1.Condition) bool {
		name, isHeader := strings.CutPrefix(strings.TrimSuffix(w.GetKey(), "]"), "request.headers[")
		test := map[string]func(string, bool) bool{
			"source.ip": within(q.peer), "remote.ip": within(q.client), "destination.ip": within(q.server),
			"source.namespace": q.isNamespace, "source.principal": q.isPrincipal, "source.serviceAccount": q.isAccount, "source.trustDomain": q.isDomain,
			"destination.port": func(v string, _ bool) bool { return v == q.port },
			"connection.sni":   func(v string, _ bool) bool { return like(strings.ToLower(v), strings.ToLower(q.sni)) },
		}[w.GetKey()]
		if isHeader {
			test = func(v string, wide bool) bool { return q.hasHeader(strings.ToLower(name), v, wide) }
		}
		return !q.has(refuses, isHeader, test, w.GetValues(), w.GetNotValues())
	})
}

// has reports whether an attribute has one of the values and none of the others. What is ambiguous
// makes a rule match that refuses requests, and not match otherwise.
func (q asked) has(refuses, http bool, test func(value string, wide bool) bool, values, others []string) bool {
	if len(values)+len(others) > 0 && http && q.stream {
		return refuses
	}
	one := len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return test(v, refuses) })
	return one && !slices.ContainsFunc(others, func(v string) bool { return test(v, !refuses) })
}

// like compares with a value that may begin or end with a wildcard.
func like(value, actual string) bool {
	switch {
	case value == "*":
		return actual != ""
	case strings.HasSuffix(value, "*"):
		return strings.HasPrefix(actual, strings.TrimSuffix(value, "*"))
	case strings.HasPrefix(value, "*"):
		return strings.HasSuffix(actual, strings.TrimPrefix(value, "*"))
	}
	return value == actual
}

// identityPart returns the trust domain, the namespace or the service account of the caller.
func (q asked) identityPart(i int) string {
	parts := strings.Split(q.identity, "/") // domain/ns/namespace/sa/account
	if len(parts) != 5 {
		return ""
	}
	return parts[i]
}

func (q asked) isPrincipal(v string, _ bool) bool {
	if domain, rest, ok := strings.Cut(v, "/"); ok && slices.Contains(q.domains, domain) && slices.Contains(q.domains, q.identityPart(0)) {
		_, actual, _ := strings.Cut(q.identity, "/")
		return like(rest, actual)
	}
	return like(v, q.identity)
}

func (q asked) isDomain(v string, _ bool) bool { return like(v, q.identityPart(0)) }

func (q asked) isNamespace(v string, wide bool) bool {
	return like(v, q.identityPart(2)) && (wide || slices.Contains(q.domains, q.identityPart(0)))
}

func (q asked) isAccount(v string, wide bool) bool {
	if !wide && !slices.Contains(q.domains, q.identityPart(0)) {
		return false
	}
	if !strings.Contains(v, "/") {
		v = q.namespace + "/" + v
	}
	return v == q.identityPart(2)+"/"+q.identityPart(4)
}

func within(a netip.Addr) func(string, bool) bool {
	return func(v string, _ bool) bool {
		if p, err := netip.ParsePrefix(v); err == nil {
			return p.Contains(a)
		}
		return v == a.String()
	}
}

func (q asked) isHost(v string, wide bool) bool {
	v, actual := strings.ToLower(v), strings.ToLower(q.host)
	if !wide {
		return like(v, actual)
	}
	return like(v, actual) || slices.ContainsFunc(strings.Split(actual, ","), func(one string) bool {
		name, _, _ := strings.Cut(one, ":")
		return like(v, name) || like(v, strings.TrimRight(name, "."))
	})
}

func (q asked) isMethod(v string, wide bool) bool {
	return like(v, q.method) || wide && like(strings.ToUpper(v), strings.ToUpper(q.method))
}

// isPath compares the path without its query. In doubt it is also compared without regard to case,
// parameters, empty segments and a slash at the end.
func (q asked) isPath(v string, wide bool) bool {
	path, _, _ := strings.Cut(q.path, "?")
	path = strings.ReplaceAll(path, "/./", "/") // Envoy resolves it
	compare := func(v, path string) bool {
		if strings.Contains(v, "{*}") || strings.Contains(v, "{**}") {
			return segments(strings.Split(v, "/"), strings.Split(path, "/"))
		}
		return like(v, path)
	}
	upward := strings.Contains(path, "..%2f")
	if !wide {
		return compare(v, path) && (!upward || v == "*" || v == path)
	}
	clean := ""
	for segment := range strings.SplitSeq(strings.ToLower(path), "/") {
		if name, _, _ := strings.Cut(segment, ";"); name != "" {
			clean += "/" + name
		}
	}
	v = strings.ToLower(v)
	return upward || compare(v, strings.ToLower(path)) || compare(v, max(clean, "/")) || strings.HasSuffix(path, "/") && compare(v, clean+"/")
}

// segments compares a path with a template, segment by segment.
func segments(want, actual []string) bool {
	switch {
	case len(want) == 0:
		return len(actual) == 0
	case len(actual) == 0:
		return false
	case want[0] == "{**}":
		for i := 1; i <= len(actual); i++ {
			if segments(want[1:], actual[i:]) {
				return true
			}
		}
		return false
	}
	return (want[0] == actual[0] || want[0] == "{*}" && actual[0] != "") && segments(want[1:], actual[1:])
}

// hasHeader compares the values of a header: all of them have to match, or one in doubt.
func (q asked) hasHeader(name, v string, wide bool) bool {
	list, present := q.headers[name]
	joined := strings.Join(list, ",")
	switch {
	case v == "*" || !present:
		return present
	case wide:
		return like(v, joined) || slices.ContainsFunc(strings.Split(joined, ","), func(one string) bool { return like(v, strings.TrimSpace(one)) })
	case q.individually:
		return !slices.ContainsFunc(list, func(one string) bool { return !like(v, one) })
	}
	return like(v, joined)
}
