// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"slices"
	"strings"

	miekg "github.com/miekg/dns"
)

// maxAliases is the maximum length of a chain of aliases in an answer.
const maxAliases = 16

// keepRelevant removes irrelevant addresses from an answer: those of names other than the requested
// name and its aliases, and those of a name of the mesh, for which only the table is authoritative.
// The answer comes from outside, and a client might trust these records.
func keepRelevant(m *miekg.Msg, name string, known bool) {
	chain := aliases(m.Answer, name)
	m.Answer = slices.DeleteFunc(m.Answer, func(rr miekg.RR) bool {
		owner := rr.Header().Name
		return hasAddress(rr) && (known && strings.EqualFold(owner, name) || !containsName(chain, owner))
	})
	m.Ns = slices.DeleteFunc(m.Ns, hasAddress)
	m.Extra = slices.DeleteFunc(m.Extra, hasAddress)
}

// hasAddress reports whether a record contains or leads to an address.
func hasAddress(rr miekg.RR) bool {
	switch rr.Header().Rrtype {
	case miekg.TypeA, miekg.TypeAAAA, miekg.TypeHTTPS, miekg.TypeSVCB:
		return true
	}
	return false
}

// aliases returns a name followed by its chain of aliases.
func aliases(records []miekg.RR, name string) []string {
	chain := []string{name}
	for range maxAliases {
		i := slices.IndexFunc(records, func(rr miekg.RR) bool {
			alias, ok := rr.(*miekg.CNAME)
			return ok && strings.EqualFold(alias.Hdr.Name, chain[len(chain)-1])
		})
		if i < 0 {
			break
		}
		target := records[i].(*miekg.CNAME).Target
		if containsName(chain, target) {
			break // a cycle
		}
		chain = append(chain, target)
	}
	return chain
}

func containsName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}
