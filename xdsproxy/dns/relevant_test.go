// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"slices"
	"testing"

	miekg "github.com/miekg/dns"
)

func TestKeepRelevant(t *testing.T) {
	t.Parallel()
	records := func(texts ...string) (list []miekg.RR) {
		for _, text := range texts {
			rr, err := miekg.NewRR(text)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, rr)
		}
		return list
	}
	const mesh = "pay.shop.svc.cluster.local. 60 IN A 203.0.113.66"
	for name, c := range map[string]struct {
		answer []string
		known  bool
		want   []int // indexes in the answer
	}{
		"the name":           {[]string{"WWW.example.org. 60 IN A 192.0.2.1", mesh}, false, []int{0}},
		"aliases":            {[]string{"b.example.org. 60 IN A 192.0.2.1", "a.example.org. 60 IN CNAME b.example.org.", "www.example.org. 60 IN CNAME a.example.org.", mesh}, false, []int{0, 1, 2}},
		"a cycle":            {[]string{"www.example.org. 60 IN CNAME a.example.org.", "a.example.org. 60 IN CNAME www.example.org.", mesh}, false, []int{0, 1}},
		"hints":              {[]string{"pay.shop.svc.cluster.local. 60 IN HTTPS 1 . ipv4hint=203.0.113.66", "www.example.org. 60 IN HTTPS 1 . ipv4hint=192.0.2.1"}, false, []int{1}},
		"no addresses":       {[]string{"other.example.org. 60 IN TXT \"x\"", "www.example.org. 60 IN MX 10 mx.example.org."}, false, []int{0, 1}},
		"a name of the mesh": {[]string{"www.example.org. 60 IN A 192.0.2.1", "www.example.org. 60 IN MX 10 mx.example.org.", "www.example.org. 60 IN AAAA 2001:db8::1"}, true, []int{1}},
	} {
		all := records(c.answer...)
		m := &miekg.Msg{Answer: slices.Clone(all), Ns: records(mesh, "example.org. 60 IN NS ns.example.org."), Extra: records(mesh)}
		keepRelevant(m, "www.example.org.", c.known)
		var want []miekg.RR
		for _, i := range c.want {
			want = append(want, all[i])
		}
		if !slices.Equal(m.Answer, want) || len(m.Ns) != 1 || len(m.Extra) != 0 {
			t.Errorf("%s: %v, want %v", name, m, want)
		}
	}
}
