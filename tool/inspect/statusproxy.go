// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// proxies prints the details of the selected proxies.
func (v view) proxies(answers []answer[report.Replica]) error {
	for _, a := range answers {
		for _, p := range a.value.Proxies {
			if err := v.proxy(p); err != nil {
				return err
			}
			v.say("\nIts objects: outrigger explain %s\nIts configuration: http://%s/debug/config_dump?pretty&proxyID=%s\n", p.Name, a.address, url.QueryEscape(p.Name))
			for _, agent := range proxiesOf([]answer[report.Replica]{{address: a.address, value: report.Replica{Proxies: []report.Proxy{p}}}}) {
				v.say("What lasts in an outage: outrigger status --agent %s\n", agent.agent)
			}
		}
	}
	return nil
}

// proxy prints the details of one proxy.
func (v view) proxy(p report.Proxy) error {
	rows := [][]string{
		{"Name", p.Name},
		{"Namespace", p.Namespace},
		{"Cluster", p.Cluster},
		{"Role", p.Role},
		{"Addresses", strings.Join(p.Addresses, ", ")},
		{"Identity", p.Identity},
		{"Versions", versions(p)},
		{"Certificate", v.certificate()},
		{"Credentials", v.credential()},
		{"Connected", fmt.Sprintf("%s ago, to control plane %s", age(p.Connected, v.now), cmp.Or(p.Replica, "without a name"))},
	}
	if worst(p) == report.Gone {
		rows[len(rows)-1][1] = "no, since " + age(p.Types[0].Since, v.now)
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	for _, row := range rows {
		v.say("%-*s%s\n", len("Certificate:")+columns.Gap, row[0]+":", oneLine(row[1]))
	}
	v.say("\n")
	rows = [][]string{{"TYPE", "STATE", "SINCE", "RESOURCES", "REASON"}}
	for _, t := range p.Types {
		resources := "-"
		if t.Resources > 0 {
			resources = fmt.Sprint(t.Resources)
		}
		rows = append(rows, []string{strings.ToUpper(t.Name), string(t.State), age(t.Since, v.now), resources, reasonOf(p, t)})
	}
	if _, err := v.columns(rows, "REASON"); err != nil {
		return err
	}
	v.rejected([]report.Proxy{p})
	return nil
}

// reasonOf returns why a type has its state.
func reasonOf(p report.Proxy, t report.Type) string {
	switch t.State {
	case report.Rejected:
		return whoSays(t.Name, t.Reason)
	case report.HeldBack:
		for _, h := range p.Held {
			if h.Type == t.Name {
				return oneLine(h.By) + " rejected " + oneLine(h.Name)
			}
		}
		return "another proxy rejected it"
	}
	return cmp.Or(oneLine(t.Reason), "-") // an older control plane does not say it
}

func versions(p report.Proxy) string {
	var words []string
	if p.Agent != "" {
		words = append(words, "agent "+p.Agent)
	}
	if p.Envoy != "" {
		words = append(words, "Envoy "+p.Envoy)
	}
	return strings.Join(words, ", ")
}
