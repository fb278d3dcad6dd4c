// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// hereTimeout is how long the agent at the usual port of this machine may take to say who it is.
const hereTimeout = time.Second

// connected returns the proxies that the control planes know, and prints which of them do not answer. If
// none does, it returns the proxies of this machine.
func (f *askFlags) connected(ctx context.Context, complaints io.Writer) ([]answer[report.Replica], error) {
	addresses, err := f.addresses()
	if err != nil && !errors.Is(err, errCluster) {
		return nil, err
	}
	answers := ask[report.Replica](ctx, addresses, question{path: "proxies", memory: f.memory}, f.timeout)
	if !slices.ContainsFunc(answers, func(a answer[report.Replica]) bool { return a.err == nil }) {
		if here, _ := f.here(ctx, addresses); len(here) > 0 { // the others have a reason of their own
			for _, a := range answers {
				err = a.err
			}
			_, _ = fmt.Fprintf(complaints, "No control plane answers (%s): asking the proxies of this machine.\n", oneLine(err.Error())) // the terminal may be closed
			return here, nil
		}
		if err != nil {
			return nil, err
		}
	}
	if complain(complaints, answers) == len(answers) {
		return nil, f.cfg.Exit(exitFailed, nil)
	}
	return answers, nil
}

// here returns the proxies that are found on this machine without a control plane: those of outrigger up,
// by the addresses of its control plane, and unless a flag names one, that of an agent at the usual port.
func (f *askFlags) here(ctx context.Context, addresses []string) (out []answer[report.Replica], err error) {
	for _, address := range addresses {
		list, failed := mesh.RunningProxies(os.TempDir(), address)
		err = errors.Join(err, failed)
		a := answer[report.Replica]{address: address}
		for _, p := range list {
			a.value.Proxies = append(a.value.Proxies, report.Proxy{Name: p.Name + "." + p.Namespace, Namespace: p.Namespace, Addresses: []string{p.Address}})
		}
		if len(list) > 0 {
			out = append(out, a)
		}
	}
	if len(out) > 0 || len(f.controls) > 0 {
		return out, err
	}
	const host = "127.0.0.1"
	raw, failed := (proxy{agent: host + ":" + agentPort}).read(ctx, "/debug/config", nil, hereTimeout)
	var config struct {
		Node struct{ ID string }
	}
	if failed != nil || json.Unmarshal(raw, &config) != nil {
		return nil, err // nothing says that there is an agent
	}
	if words := strings.Split(config.Node.ID, "~"); len(words) == 4 { // type, address, name and domain
		one := report.Proxy{Name: words[2], Namespace: words[2][strings.LastIndexByte(words[2], '.')+1:], Addresses: []string{host}}
		out = append(out, answer[report.Replica]{value: report.Replica{Proxies: []report.Proxy{one}}})
	}
	return out, err
}
