// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// mesh returns a table of n services in a hundred namespaces.
func mesh(n int) (table *nds.Table, names []string) {
	table = &nds.Table{Hosts: make(map[string]nds.Host, n)}
	for i := range n {
		short, namespace := fmt.Sprintf("service-%d", i), fmt.Sprintf("ns-%d", i%100)
		name := short + "." + namespace + ".svc.cluster.local"
		table.Hosts[name] = nds.Host{
			IPs: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, Registry: nds.Kubernetes, Shortname: short, Namespace: namespace,
		}
		names = append(names, name)
	}
	return table, names
}

func packed(t testing.TB, name string, qtype uint16, edns int) []byte {
	t.Helper()
	b, err := request(miekg.Fqdn(name), qtype, edns).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAnswerAllocatesNothing checks all kinds of answers with a large table.
func TestAnswerAllocatesNothing(t *testing.T) {
	for _, size := range []int{10, 10_000} {
		table, names := mesh(size)
		table.Hosts["*.wild.example"] = nds.Host{IPs: addresses(100)}
		s := offline(t, table)
		q, out := new(query), make([]byte, 0, maxUDP)
		for _, msg := range [][]byte{
			packed(t, names[3], miekg.TypeA, 0), packed(t, names[3], miekg.TypeAAAA, 1232), packed(t, names[4]+".corp.example", miekg.TypeA, 1232),
			packed(t, "a.b.wild.example.svc.cluster.local", miekg.TypeA, 0), packed(t, names[3], miekg.TypeAXFR, 0),
			{1, 2, 3},
		} {
			if n := testing.AllocsPerRun(200, func() { s.respond(out, q, msg, false) }); n != 0 {
				t.Errorf("%d hosts, %x: %v allocations", size, msg, n)
			}
		}
	}
}

// TestTableMemory checks the memory use of a large table.
func TestTableMemory(t *testing.T) {
	const size, most = 100_000, 600 // hosts, bytes per host
	s := offline(t, &nds.Table{})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	func() {
		table, _ := mesh(size)
		s.Update(table)
	}()
	took := (heap() - before) / size
	t.Logf("%d bytes for each of %d hosts", took, size)
	if took > most {
		t.Errorf("each host takes %d bytes, want at most %d", took, most)
	}
	runtime.KeepAlive(s)
}

// BenchmarkAnswer measures one answer without system calls.
func BenchmarkAnswer(b *testing.B) {
	for _, size := range []int{10, 1000, 50_000} {
		table, names := mesh(size)
		s := offline(b, table)
		for _, domain := range []string{"", ".corp.example"} { // the last of four search domains
			b.Run(fmt.Sprintf("hosts=%d%s", size, domain), func(b *testing.B) {
				msg, q, out := packed(b, names[size/2]+domain, miekg.TypeA, 1232), new(query), make([]byte, 0, maxUDP)
				b.ReportAllocs()
				for b.Loop() {
					if reply, _ := s.respond(out, q, msg, false); len(reply) == 0 {
						b.Fatal("no answer")
					}
				}
			})
		}
	}
}

// BenchmarkUpdate measures an update of the table.
func BenchmarkUpdate(b *testing.B) {
	for _, size := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("hosts=%d", size), func(b *testing.B) {
			table, _ := mesh(size)
			s := offline(b, table)
			b.ReportAllocs()
			for b.Loop() {
				s.Update(table)
			}
		})
	}
}

// TestLoad sends many requests to a server whose table changes continuously. Every request is
// answered; make bench measures the speed.
func TestLoad(t *testing.T) {
	t.Parallel()
	table, names := mesh(2000)
	s := start(t, config(t, upstream(t, good(t)).Address()), table)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				s.Update(table)
			}
		}
	}()
	result, err := dnstest.Load{Address: s.address(), Names: append(names, outsideName), Duration: 500 * time.Millisecond, Patience: 2 * time.Minute}.Run(t.Context())
	close(stop)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	t.Log(result)
	if result.Wrong > 0 || result.Lost > 0 || result.Answers == 0 {
		t.Errorf("got %s", result)
	}
}
