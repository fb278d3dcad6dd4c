// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	miekg "github.com/miekg/dns"
	"google.golang.org/protobuf/types/known/anypb"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

const (
	// dnsFloorCommand as the first argument makes this program the server that
	// DNS is compared with.
	dnsFloorCommand = "dnsfloor"

	dnsHost      = "127.9.103.1" // the control plane
	dnsAgentHost = "127.9.103.2"
	dnsFloorHost = "127.9.103.3"
	dnsPort      = ":15053"
	dnsTable     = 10_000                // names
	dnsAnswer    = time.Second / 50_000  // what an answer may take
	dnsTail      = time.Millisecond      // and what all but one in a hundred
	dnsClients   = 8                     // who ask at the same time, as fast as they can
	dnsTime      = 2 * time.Second       // of one round
	dnsPatience  = 10 * time.Second      // until a server is there
	dnsLook      = 20 * time.Millisecond // between two looks
)

// runDNSFloor is the least that a DNS server of miekg/dns does: the same answer
// to every question.
func runDNSFloor(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet(dnsFloorCommand, flag.ContinueOnError)
	listen := fs.String("listen", "", "address")
	if err := fs.Parse(args); err != nil {
		return err
	}
	server := &miekg.Server{Addr: *listen, Net: "udp", Handler: miekg.HandlerFunc(func(w miekg.ResponseWriter, q *miekg.Msg) {
		m := new(miekg.Msg).SetReply(q)
		m.Answer = []miekg.RR{&miekg.A{
			Hdr: miekg.RR_Header{Name: q.Question[0].Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 30}, A: net.IPv4(10, 0, 0, 1),
		}}
		_ = w.WriteMsg(m) // who asked asks again
	})}
	defer context.AfterFunc(ctx, func() { _ = server.Shutdown() })()
	if err := server.ListenAndServe(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	return nil
}

// nameTable is a table of services in a hundred namespaces, and their names.
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

// dns measures lookups: names of the mesh at an agent, and any name at a server
// that knows one answer. Each has one processor.
func (b *bench) dns(ctx context.Context) (figures []figure, err error) {
	b.say("dns: lookups at an agent with %d names", dnsTable)
	table, names := nameTable()
	agent, stop, err := b.dnsAgent(ctx, table, names[0])
	if err != nil {
		return nil, err
	}
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	floor, err := b.start.run(spec{
		path: self, dir: b.path("dnsfloor"), log: b.path("dnsfloor.log"), args: []string{dnsFloorCommand, "--listen", dnsFloorHost + dnsPort},
		env: []string{"GOMAXPROCS=1"},
	})
	if err != nil {
		return nil, err
	}
	defer floor.stop()
	if err := untilAnswers(ctx, floor, dnsFloorHost+dnsPort, names[0]); err != nil {
		return nil, err
	}
	_, before, err := memory(agent.pid())
	if err != nil {
		return nil, err
	}
	var each [2]lookups
	for range b.rounds {
		for i, p := range []struct {
			*process
			address string
		}{{agent, dnsAgentHost + dnsPort}, {floor, dnsFloorHost + dnsPort}} {
			if err := each[i].round(ctx, p.process, p.address, names); err != nil {
				return nil, err
			}
		}
	}
	_, after, err := memory(agent.pid())
	if err != nil {
		return nil, err
	}
	b.say("dns: %.0f answers a second, straight %.0f", 1/each[0].middle(each[0].answer), 1/each[1].middle(each[1].answer))
	return []figure{
		{Name: "dns: one answer under full load (50,000 a second)", Unit: milliseconds, Ours: each[0].middle(each[0].answer), Straight: each[1].middle(each[1].answer), Target: dnsAnswer.Seconds()},
		{Name: "dns: CPU for one answer (50,000 a second and core)", Unit: milliseconds, Ours: each[0].middle(each[0].cpu), Straight: each[1].middle(each[1].cpu), Target: dnsAnswer.Seconds()},
		{Name: "dns: p99 under full load", Unit: milliseconds, Ours: each[0].middle(each[0].tail), Straight: each[1].middle(each[1].tail), Target: dnsTail.Seconds()},
		{Name: "dns: lost or wrong", Unit: count, Ours: float64(each[0].bad)},
		{Name: "dns: rise of the agent's anonymous memory", Unit: megabytes, Ours: max(0, after-before)},
	}, nil
}

// lookups are the rounds of one server, in seconds.
type lookups struct {
	answer, cpu, tail []float64
	bad               int
}

func (l *lookups) middle(values []float64) float64 {
	m, _ := median(values) // there is at least one round
	return m
}

// round asks a server for a while.
func (l *lookups) round(ctx context.Context, p *process, address string, names []string) error {
	used, err := cpu(p.pid())
	if err != nil {
		return err
	}
	result, err := dnstest.Load{Address: address, Names: names, Clients: dnsClients, Duration: dnsTime}.Run(ctx)
	if err != nil {
		return err
	}
	usedThen, err := cpu(p.pid())
	if err != nil {
		return err
	}
	if result.Answers == 0 {
		return fmt.Errorf("%s: %s: %s", address, result, p.lastWords())
	}
	l.answer = append(l.answer, 1/result.PerSecond())
	l.cpu = append(l.cpu, (usedThen-used).Seconds()/float64(result.Answers))
	l.tail = append(l.tail, result.P99.Seconds())
	l.bad += result.Lost + result.Wrong
	return nil
}

// dnsAgent starts an agent and gives it a name table, as a control plane does.
func (b *bench) dnsAgent(ctx context.Context, table *nds.Table, name string) (agent *process, stop func(), err error) {
	fake := b.path("fake-envoy-dns")
	if err := os.WriteFile(fake, []byte(fakeEnvoy), 0o700); err != nil {
		return nil, nil, fmt.Errorf("write the program that takes Envoy's place: %w", err)
	}
	far, err := b.startSource(dnsHost+plaintext, b.path("d"))
	if err != nil {
		return nil, nil, err
	}
	agent, err = b.startAgent("dns", agentSpec{
		address: dnsAgentHost, discovery: dnsHost + plaintext, binary: fake, plaintext: true, env: []string{"ISTIO_META_DNS_CAPTURE=true"},
	})
	if err != nil {
		far.stop()
		return nil, nil, err
	}
	ends := []func(){far.stop, agent.stop}
	stop = func() {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i]()
		}
	}
	socket := b.path("dns", "etc", "istio", "proxy", "XDS")
	if err = errors.Join(waitForSocket(ctx, far, b.path("d")), waitForSocket(ctx, agent, socket)); err == nil {
		var envoy *path
		if envoy, err = open(ctx, far, socket); err == nil {
			ends = append(ends, envoy.close)
			err = envoy.order(b.path("names"), func() *discoveryv3.DiscoveryResponse {
				return &discoveryv3.DiscoveryResponse{TypeUrl: nds.TypeURL, VersionInfo: "1", Resources: []*anypb.Any{{TypeUrl: nds.TypeURL, Value: table.Marshal()}}}
			})
		}
		if err == nil {
			err = untilAnswers(ctx, agent, dnsAgentHost+dnsPort, name)
		}
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return agent, stop, nil
}

// untilAnswers asks a server until it has an address of a name.
func untilAnswers(ctx context.Context, p *process, address, name string) error {
	ctx, cancel := context.WithTimeout(ctx, dnsPatience)
	defer cancel()
	for {
		r, _, err := new(miekg.Client).ExchangeContext(ctx, new(miekg.Msg).SetQuestion(miekg.Fqdn(name), miekg.TypeA), address)
		if err == nil && len(r.Answer) > 0 {
			return nil
		}
		if sleep(ctx, dnsLook) != nil {
			return errors.Join(fmt.Errorf("%s does not answer for %s: %s", address, name, p.lastWords()), err)
		}
	}
}
