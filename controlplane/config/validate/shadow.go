// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// mostPrefix bounds the prefixes that are looked for in a longer path.
const mostPrefix = 1024

// shadows finds the first of the matches in front that takes all requests of
// another match. It does not compare pairs.
type shadows interface {
	// add adds the next match.
	add(i int)
	// covering returns the index of the first match that was added and takes
	// all requests of match i.
	covering(i int) (at int, ok bool)
	// coveringAll returns the index of the first match that was added and
	// takes all requests.
	coveringAll() (at int, ok bool)
}

// shadowedRoutes warns of routes and matches that no request reaches, because
// earlier ones take all of theirs.
func (c *checker) shadowedRoutes(vs *networkingv1alpha3.VirtualService) {
	http := make([][]*networkingv1alpha3.HTTPMatchRequest, len(vs.GetHttp()))
	delegates := false
	for i, r := range vs.GetHttp() {
		http[i] = r.GetMatch()
		delegates = delegates || r.GetDelegate() != nil
	}
	shadowed(c, "spec.http", http, func(all []*networkingv1alpha3.HTTPMatchRequest) shadows {
		return &httpShadows{matches: all, equal: firsts[string]{}, anyPath: firsts[string]{}, prefixes: firsts[httpPrefix]{}, lengths: map[string][]int{}, delegates: delegates}
	})
	tls := make([][]*networkingv1alpha3.TLSMatchAttributes, len(vs.GetTls()))
	for i, r := range vs.GetTls() {
		tls[i] = r.GetMatch()
	}
	shadowed(c, "spec.tls", tls, func(all []*networkingv1alpha3.TLSMatchAttributes) shadows {
		return &equalShadows[*networkingv1alpha3.TLSMatchAttributes]{matches: all, seen: firsts[string]{}}
	})
	tcp := make([][]*networkingv1alpha3.L4MatchAttributes, len(vs.GetTcp()))
	for i, r := range vs.GetTcp() {
		tcp[i] = r.GetMatch()
	}
	shadowed(c, "spec.tcp", tcp, func(all []*networkingv1alpha3.L4MatchAttributes) shadows {
		return &equalShadows[*networkingv1alpha3.L4MatchAttributes]{matches: all, seen: firsts[string]{}, emptyTakesAll: true}
	})
}

// matchText returns a text that is the same for equal messages.
func matchText(m proto.Message) string {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error() // text that is not UTF-8, which is refused elsewhere
	}
	return string(raw)
}

// equalShadows compares whole matches.
type equalShadows[M proto.Message] struct {
	matches []M
	seen    firsts[string]
	// emptyTakesAll means that a match without fields takes everything.
	emptyTakesAll bool
}

func (s *equalShadows[M]) add(i int) { s.seen.add(i, matchText(s.matches[i])) }

func (s *equalShadows[M]) covering(i int) (int, bool) {
	if s.emptyTakesAll {
		return s.seen.earliest(matchText(s.matches[i]), "")
	}
	return s.seen.earliest(matchText(s.matches[i]))
}

func (s *equalShadows[M]) coveringAll() (int, bool) {
	at, ok := s.seen.earliest("")
	return at, ok && s.emptyTakesAll
}

// httpShadows knows that a prefix takes longer paths, if the rest of the match
// is empty or the same.
type httpShadows struct {
	matches []*networkingv1alpha3.HTTPMatchRequest
	// equal holds whole matches, anyPath the rest of those that take every
	// path, prefixes those that take paths with a prefix.
	equal, anyPath firsts[string]
	prefixes       firsts[httpPrefix]
	// lengths are those of the prefixes beside each rest.
	lengths map[string][]int
	// delegates means that routes may leave requests to later ones.
	delegates bool
}

// httpPrefix is a prefix of paths and what else a match asks for.
type httpPrefix struct {
	rest, prefix string
	ignoreCase   bool
}

// parts returns the match without what decides nothing, and without its path.
func (s *httpShadows) parts(i int) (whole, rest string) {
	m := s.matches[i]
	bare := &networkingv1alpha3.HTTPMatchRequest{
		Scheme: m.GetScheme(), Method: m.GetMethod(), Authority: m.GetAuthority(), Headers: m.GetHeaders(), Port: m.GetPort(),
		SourceLabels: m.GetSourceLabels(), Gateways: m.GetGateways(), QueryParams: m.GetQueryParams(),
		WithoutHeaders: m.GetWithoutHeaders(), SourceNamespace: m.GetSourceNamespace(),
	}
	rest = matchText(bare)
	bare.Uri, bare.IgnoreUriCase = m.GetUri(), m.GetIgnoreUriCase()
	return matchText(bare), rest
}

func (s *httpShadows) add(i int) {
	whole, rest := s.parts(i)
	s.equal.add(i, whole)
	m := s.matches[i]
	prefix, ok := m.GetUri().GetMatchType().(*networkingv1alpha3.StringMatch_Prefix)
	switch {
	case m.GetUri() == nil, ok && prefix.Prefix == "/":
		s.anyPath.add(i, rest)
	case ok && prefix.Prefix != "" && len(prefix.Prefix) <= mostPrefix:
		s.prefixes.add(i, httpPrefix{rest, prefix.Prefix, m.GetIgnoreUriCase()})
		if at, known := slices.BinarySearch(s.lengths[rest], len(prefix.Prefix)); !known {
			s.lengths[rest] = slices.Insert(s.lengths[rest], at, len(prefix.Prefix))
		}
	}
}

func (s *httpShadows) covering(i int) (int, bool) {
	whole, rest := s.parts(i)
	at, ok := s.equal.earliest(whole)
	consider := func(j int, found bool) {
		if found && (!ok || j < at) {
			at, ok = j, true
		}
	}
	path := s.matches[i].GetUri().GetPrefix()
	if path == "" {
		path = s.matches[i].GetUri().GetExact()
	}
	for _, of := range []string{"", rest} {
		consider(s.anyPath.earliest(of))
		for _, n := range s.lengths[of] {
			if n > len(path) {
				break
			}
			consider(s.prefixes.earliest(httpPrefix{of, path[:n], true}))
			if !s.matches[i].GetIgnoreUriCase() {
				consider(s.prefixes.earliest(httpPrefix{of, path[:n], false}))
			}
		}
	}
	return at, ok
}

func (s *httpShadows) coveringAll() (int, bool) {
	at, ok := s.anyPath.earliest("")
	return at, ok && !s.delegates
}

// shadowed warns of the routes of a list, given by their matches; a route
// without any takes everything.
func shadowed[M proto.Message](c *checker, path string, routes [][]M, newShadows func([]M) shadows) {
	all := slices.Concat(routes...)
	before := newShadows(all)
	places := make([]string, 0, len(all))
	for i, matches := range routes {
		at := field.Index(path, i)
		if len(matches) == 0 {
			if by, ok := before.coveringAll(); ok {
				c.warnf(at, "is never reached: %s comes first and takes all requests; write it last", places[by])
			}
			if i+1 < len(routes) {
				c.warnf(field.Index(path, i+1), "is never reached: %s has no match and takes all requests; write it last", at)
			}
			return
		}
		taken := 0
		for j := range matches {
			n := len(places)
			places = append(places, field.Index(at+".match", j))
			if by, ok := before.covering(n); ok {
				c.warnf(places[n], "is never reached: %s comes first and takes all requests that it matches; write it before that, or remove it", places[by])
				taken++
			}
			before.add(n)
		}
		if taken == len(matches) {
			c.warnf(at, "is never reached: earlier routes take all requests that it matches (%s)", plural(taken, "match"))
		}
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ses", n, word)
}
