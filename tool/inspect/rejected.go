// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"regexp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// coded is the code of a rejection, which is no part of the words.
var coded = regexp.MustCompile(`^code \d+: *`)

// wordsOf returns who rejected something of a type, and with which words: Envoy, or its agent, which marks what
// Envoy did not see, and answers for names and trust bundles itself.
func wordsOf(typ, reason string) (who, text string) {
	const refused = "refused by the agent: "
	text = coded.ReplaceAllString(oneLine(reason), "")
	if own, ok := strings.CutPrefix(text, refused); ok || strings.HasPrefix(reason, report.AgentCode) || typ == "nds" || typ == "pcds" {
		return "the agent", own
	}
	return "Envoy", text
}

// whoSays returns the words of a rejection after the name of whom they are from.
func whoSays(typ, reason string) string {
	who, text := wordsOf(typ, reason)
	return strings.ToUpper(who[:1]) + who[1:] + " says: " + text
}

// notInForce reports whether the newest version of an object is not in force, or not everywhere.
func notInForce(o report.Object) bool {
	return wrong(o.Problems) || len(o.Lacking) > 0 || rejectedOn(o.Proxies)
}

// rejectedOn reports whether a proxy does not have an object because it or another one rejected it.
func rejectedOn(proxies []report.Standing) bool {
	return slices.ContainsFunc(proxies, func(s report.Standing) bool { return s.State == report.Rejected || s.State == report.HeldBack })
}

// wrong reports whether there is an error among problems.
func wrong(list []report.Problem) bool {
	return slices.ContainsFunc(list, func(p report.Problem) bool { return !p.Warning })
}

// refusing reports whether a proxy does not have what was made for it, because it or another one
// rejected it.
func refusing(p report.Proxy) bool {
	return len(p.Held) > 0 || slices.ContainsFunc(p.Types, func(t report.Type) bool { return t.State == report.Rejected || t.State == report.HeldBack })
}

// rejected lists rejections without duplicates: resources that are held back from all proxies like
// the one that rejected them, and resources that were rejected by individual proxies.
func (v view) rejected(proxies []report.Proxy) {
	type place struct{ namespace, kind, name, by string }
	seen := map[place]bool{}
	var all []report.Held
	var own []report.Proxy
	for _, p := range proxies {
		for _, h := range p.Held {
			if at := (place{p.Namespace, h.Type, h.Name, h.By}); !seen[at] {
				seen[at] = true
				all = append(all, h)
			}
		}
		if len(ownRejections(p)) > 0 {
			own = append(own, p)
		}
	}
	if len(all)+len(own) == 0 {
		return
	}
	v.say("\nRejected:\n")
	shown, left := cut(v.flags, all)
	for _, h := range shown {
		v.held(h)
	}
	v.more(left)
	few, left := cut(v.flags, own)
	for _, p := range few {
		v.own(p)
	}
	v.more(left)
}

// ownRejections returns the types that only this proxy rejected.
func ownRejections(p report.Proxy) (list []report.Type) {
	for _, t := range p.Types {
		if t.State == report.Rejected && !slices.ContainsFunc(p.Held, func(h report.Held) bool { return h.Type == t.Name }) {
			list = append(list, t)
		}
	}
	return list
}

func (v view) own(p report.Proxy) {
	for _, t := range ownRejections(p) {
		v.say("  %s, by %s %s ago; %s\n    %s\n", t.Name, p.Name, age(t.Since, v.now), report.Kept(t.Name, t.LastGood), whoSays(t.Name, t.Reason))
	}
}

// held describes a resource that is held back.
func (v view) held(h report.Held) {
	v.say("  %s %s, by %s %s ago; %s\n    %s\n", h.Type, h.Name, h.By, age(h.Since, v.now), report.Kept(h.Type, h.LastGood), whoSays(h.Type, h.Reason))
	for _, o := range h.Objects {
		v.say("    Made from: %s\n", causeText(o))
	}
}

// causeText returns the name of an object as the arguments of commands have it, and its place.
func causeText(o report.Cause) string {
	text := strings.ToLower(o.Kind) + "/" + o.Name
	if o.Namespace != "" {
		text += "." + o.Namespace
	}
	if o.Source != "" {
		text += " from " + o.Source
	}
	return oneLine(text)
}

func (v view) more(left int) {
	if left > 0 {
		v.say("  … and %d more: --all shows them\n", left)
	}
}
