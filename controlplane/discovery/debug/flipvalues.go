// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"net/netip"
	"regexp/syntax"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// setRequestPrincipal sets a token of an issuer and a subject.
func (s *probes) setRequestPrincipal(q *probe, v string) {
	by, subject := s.issuers[0], ""
	for _, one := range s.issuers {
		if rest, ok := strings.CutPrefix(v, one.name+"/"); ok {
			by, subject = one, rest
			break
		}
	}
	if end, ok := strings.CutPrefix(v, "*"); ok && subject == "" {
		subject = end[strings.LastIndexByte(end, '/')+1:]
	}
	delete(q.Claims, "aud")
	by.token(q, concrete(subject))
}

// setPrincipal sets an identity that a value matches, in the trust domain of the mesh if the value names
// none.
func (s *probes) setPrincipal(q *probe, v string) {
	v = strings.TrimPrefix(v, scheme)
	domain, rest, _ := strings.Cut(v, "/")
	parts := []string{"ns", "default", "sa", "default"}
	switch end, suffix := strings.CutPrefix(v, "*"); {
	case suffix && strings.Contains(end, "/ns/"):
		domain, rest = "", end[strings.Index(end, "/ns/")+1:]
	case suffix:
		domain, parts[3] = "", cmp.Or(end[strings.LastIndexByte(end, '/')+1:], parts[3])
		rest = strings.Join(parts, "/")
	case strings.HasSuffix(v, "*"):
		for i, part := range strings.Split(strings.TrimSuffix(rest, "*"), "/") {
			if i < len(parts) && i%2 == 1 && part != "" {
				parts[i] = part
			}
		}
		domain, rest = strings.TrimSuffix(domain, "*"), strings.Join(parts, "/")
	}
	if domain == "" || domain == "cluster.local" {
		domain = s.of.trustDomain()
	}
	q.as = new(scheme + domain + "/" + rest)
}

func (s *probes) setNamespace(q *probe, v string) {
	namespace := concrete(v)
	q.as = new(cmp.Or(s.of.inside[namespace], certs.ID{TrustDomain: s.of.trustDomain(), Namespace: namespace, ServiceAccount: "default"}.String()))
}

func setTrustDomain(q *probe, v string) {
	q.as = new(certs.ID{TrustDomain: concrete(v), Namespace: "default", ServiceAccount: "default"}.String())
}

// setAccount returns a function that sets a service account, of the given namespace if it names none.
func (s *probes) setAccount(namespace string) func(*probe, string) {
	return func(q *probe, v string) {
		account := concrete(v)
		if of, name, ok := strings.Cut(v, "/"); ok {
			namespace, account = concrete(of), concrete(name)
		}
		q.as = new(certs.ID{TrustDomain: s.of.trustDomain(), Namespace: namespace, ServiceAccount: account}.String())
	}
}

func setPeer(q *probe, v string) { q.Peer = addressIn(v) }

// setClient sets the address that proxies before this one recorded, too.
func setClient(q *probe, v string) {
	if q.Peer = addressIn(v); q.Peer.IsValid() {
		q.header("x-forwarded-for", q.Peer.String())
	}
}

// addressIn returns an address of a range; the zero value if it is invalid.
func addressIn(v string) netip.Addr {
	r := envoyconf.ParseRange(v)
	first, err := netip.ParseAddr(r.GetAddressPrefix())
	if err != nil {
		return netip.Addr{}
	}
	if second := first.Next(); int(r.GetPrefixLen().GetValue()) < first.BitLen()-1 && second.IsValid() {
		return second
	}
	return first
}

// concrete returns a text that a value with wildcards matches.
func concrete(v string) string {
	switch v = strings.NewReplacer("{**}", "x", "{*}", "x").Replace(v); {
	case v == "*":
		return "x"
	case strings.HasSuffix(v, "*"):
		return v[:len(v)-1]
	case strings.HasPrefix(v, "*"):
		return "x" + v[1:]
	}
	return v
}

// trustDomain returns that of the mesh.
func (f *flips) trustDomain() string {
	return cmp.Or(f.debugger.mesh.Config.GetTrustDomain(), "cluster.local")
}

// exampleOf returns a text that matches.
func exampleOf(m *matcherv3.StringMatcher) string {
	text := m.GetExact() + m.GetPrefix() + m.GetSuffix() + m.GetContains() + example(m.GetSafeRegex().GetRegex())
	return cmp.Or(text, "x")
}

// maxExample is the maximum length of an example, in bytes.
const maxExample = 1 << 10

// example returns a text that matches a regular expression: that with the fewest repetitions, and the
// first of alternatives. It is empty if the expression is invalid, or the text too long.
func example(expr string) string {
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return ""
	}
	var b strings.Builder
	var write func(*syntax.Regexp)
	write = func(re *syntax.Regexp) {
		switch {
		case b.Len() > maxExample:
		case re.Op == syntax.OpLiteral:
			b.WriteString(string(re.Rune))
		case re.Op == syntax.OpCharClass && len(re.Rune) > 0:
			r := re.Rune[0] // of the first range
			for i := 0; i < len(re.Rune) && r < 'a'; i += 2 {
				if first, last := max(re.Rune[i], '0'), re.Rune[i+1]; first <= last {
					r = first
					break
				}
			}
			b.WriteRune(r)
		case re.Op == syntax.OpAnyChar || re.Op == syntax.OpAnyCharNotNL:
			b.WriteByte('x')
		case re.Op == syntax.OpCapture || re.Op == syntax.OpPlus || re.Op == syntax.OpAlternate:
			write(re.Sub[0])
		case re.Op == syntax.OpRepeat:
			for range re.Min {
				write(re.Sub[0])
			}
		case re.Op == syntax.OpConcat:
			for _, sub := range re.Sub {
				write(sub)
			}
		}
	}
	if write(parsed); b.Len() > maxExample {
		return ""
	}
	return b.String()
}
