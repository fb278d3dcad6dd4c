// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	miekg "github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

const (
	// dnsFloorHelper is the name of the helper with which DNS is compared.
	dnsFloorHelper = "dnsfloor"

	dnsHost      = "127.9.103.1" // of the control plane
	dnsAgentHost = "127.9.103.2"
	dnsFloorHost = "127.9.103.3"
	dnsPort      = ":15053"
	dnsTable     = 10_000               // names
	dnsAnswer    = time.Second / 50_000 // target time per answer
	dnsTail      = time.Millisecond     // target for the 99th percentile
	dnsClients   = 8                    // concurrent clients, which send requests as fast as possible
	dnsTime      = 2 * time.Second      // duration of one round
)

// runDNSFloor is a minimal DNS server based on miekg/dns: it sends the same answer to every
// question, at the address args[0] and on one processor.
func runDNSFloor(ctx context.Context, args []string) error {
	runtime.GOMAXPROCS(1)
	server := &miekg.Server{Addr: args[0], Net: "udp", Handler: miekg.HandlerFunc(func(w miekg.ResponseWriter, q *miekg.Msg) {
		m := new(miekg.Msg).SetReply(q)
		m.Answer = []miekg.RR{&miekg.A{
			Hdr: miekg.RR_Header{Name: q.Question[0].Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 30}, A: net.IPv4(10, 0, 0, 1),
		}}
		_ = w.WriteMsg(m) // the client retries
	})}
	defer context.AfterFunc(ctx, func() { _ = server.Shutdown() })()
	if err := server.ListenAndServe(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	return nil
}

// nameTable returns a table of services in a hundred namespaces, and their names.
func nameTable() (*nds.Table, []string) {
	table, names := &nds.Table{Hosts: make(map[string]nds.Host, dnsTable)}, make([]string, 0, dnsTable)
	for i := range dnsTable {
		short, namespace := fmt.Sprintf("service-%d", i), fmt.Sprintf("ns-%d", i%100)
		name := short + "." + namespace + ".svc.cluster.local"
		table.Hosts[name] = nds.Host{
			IPs: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, Registry: nds.Kubernetes, Shortname: short, Namespace: namespace,
		}
		names = append(names, name)
	}
	return table, names
}

// dns measures lookups of mesh names at an agent, and of any name at a server with a single answer.
// Each uses one processor.
func (b *bench) dns(ctx context.Context) {
	b.say("dns: lookups at an agent with %d names", dnsTable)
	table, names := nameTable()
	agent, envoy := b.dnsAgent(ctx, table)
	defer envoy.close()
	floor := b.helper(dnsFloorHelper, dnsFloorHost+dnsPort)
	servers := []struct {
		*process
		address string
		rounds  []lookups
	}{{process: agent, address: dnsAgentHost + dnsPort}, {process: floor, address: dnsFloorHost + dnsPort}}
	for _, s := range servers {
		s.until(ctx, "answering for "+names[0], 20*time.Millisecond, func(ctx context.Context) bool {
			r, _, err := new(miekg.Client).ExchangeContext(ctx, new(miekg.Msg).SetQuestion(miekg.Fqdn(names[0]), miekg.TypeA), s.address)
			return err == nil && len(r.Answer) > 0
		})
	}
	before := agent.usage().anonymous
	for range b.rounds {
		for i, s := range servers {
			servers[i].rounds = append(s.rounds, lookupsOf(ctx, s.process, s.address, names))
		}
	}
	rise, bad := max(0, agent.usage().anonymous-before), 0
	for _, l := range servers[0].rounds {
		bad += l.bad
	}
	row := func(name string, target time.Duration, of func(lookups) float64) figure {
		return figure{Name: name, Unit: milliseconds, Ours: median(servers[0].rounds, of), Straight: median(servers[1].rounds, of), Target: target.Seconds()}
	}
	b.add(
		row("dns: one answer under full load (50,000 a second)", dnsAnswer, func(l lookups) float64 { return l.answer }),
		row("dns: CPU for one answer (50,000 a second and core)", dnsAnswer, func(l lookups) float64 { return l.cpu }),
		row("dns: p99 under full load", dnsTail, func(l lookups) float64 { return l.tail }),
		figure{Name: "dns: lost or wrong", Unit: count, Ours: float64(bad)},
		figure{Name: "dns: rise of the agent's anonymous memory", Unit: megabytes, Ours: rise})
}

// lookups is the result of one round at one server, in seconds.
type lookups struct {
	answer, cpu, tail float64
	bad               int
}

// lookupsOf measures lookups at a server.
func lookupsOf(ctx context.Context, p *process, address string, names []string) lookups {
	used := p.usage().cpu
	result := must(dnstest.Load{Address: address, Names: names, Clients: dnsClients, Duration: dnsTime}.Run(ctx))
	used = p.usage().cpu - used
	if result.Answers == 0 {
		fail("%s: %s: %s", address, result, p.LastWords())
	}
	return lookups{1 / result.PerSecond(), used / float64(result.Answers), result.P99.Seconds(), result.Lost + result.Wrong}
}

// dnsAgent starts an agent and sends it a name table, like a control plane. Its Envoy is a stream,
// which the caller closes.
func (b *bench) dnsAgent(ctx context.Context, table *nds.Table) (agent *process, envoy *path) {
	far := b.source(ctx, dnsHost+plaintext, b.path("d"))
	agent = b.startAgent("dns", agentSpec{address: dnsAgentHost, discovery: dnsHost + plaintext, env: []string{"ISTIO_META_DNS_CAPTURE=true"}})
	socket := b.path("dns", "etc", "istio", "proxy", "XDS")
	agent.listens(ctx, "unix", socket)
	envoy = open(ctx, socket)
	writeFile(b.path("names"), string(must(proto.Marshal(&discoveryv3.DiscoveryResponse{
		TypeUrl: nds.TypeURL, VersionInfo: "1", Resources: []*anypb.Any{{TypeUrl: nds.TypeURL, Value: table.Marshal()}},
	}))))
	far.order(envoy.name, b.path("names"), "")
	return agent, envoy
}
