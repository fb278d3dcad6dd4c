// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// zone is the domain of the cluster.
const zone = ".svc.cluster.local."

// names resolves the Services of the cluster, as the DNS server of a cluster does: to the cluster
// IP, or the addresses of a headless Service. It knows no other names.
type names struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// serveNames serves DNS on the node's address until the process ends.
func serveNames(client kubernetes.Interface) error {
	packets, err := net.ListenPacket("udp", net.JoinHostPort(nodeAddress, "53"))
	if err != nil {
		return err
	}
	streams, err := net.Listen("tcp", net.JoinHostPort(nodeAddress, "53"))
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	n := &names{services: factory.Core().V1().Services().Lister(), slices: factory.Discovery().V1().EndpointSlices().Lister()}
	forever := make(chan struct{})
	factory.Start(forever)
	factory.WaitForCacheSync(forever)
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: n}, {Listener: streams, Handler: n}} {
		go func() { _ = server.ActivateAndServe() }() // it ends with the process
	}
	return nil
}

// ServeDNS answers one query.
func (n *names) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	answer := new(dns.Msg).SetReply(question)
	answer.Authoritative, answer.RecursionAvailable = true, true
	if len(question.Question) == 1 {
		q := question.Question[0]
		addresses, found := n.lookUp(strings.ToLower(q.Name))
		if !found {
			answer.Rcode = dns.RcodeNameError
		}
		header := dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: uint32(5 * time.Second / time.Second)}
		for _, address := range addresses {
			ip := net.ParseIP(address)
			switch {
			case q.Qtype == dns.TypeA && ip.To4() != nil:
				header.Rrtype = dns.TypeA
				answer.Answer = append(answer.Answer, &dns.A{Hdr: header, A: ip.To4()})
			case q.Qtype == dns.TypeAAAA && ip.To4() == nil:
				header.Rrtype = dns.TypeAAAA
				answer.Answer = append(answer.Answer, &dns.AAAA{Hdr: header, AAAA: ip})
			}
		}
	}
	_ = w.WriteMsg(answer) // the client retries
}

// lookUp returns the addresses of a name and whether the name exists.
func (n *names) lookUp(name string) (addresses []string, found bool) {
	rest, ok := strings.CutSuffix(name, zone)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) < 2 {
		return nil, false
	}
	service, namespace := parts[len(parts)-2], parts[len(parts)-1]
	s, err := n.services.Services(namespace).Get(service)
	if err != nil {
		return nil, false
	}
	if s.Spec.ClusterIP != corev1.ClusterIPNone {
		return s.Spec.ClusterIPs, len(parts) == 2
	}
	all, err := n.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil, false
	}
	for _, slice := range all {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			named := len(parts) == 2 || len(parts) == 3 && endpoint.Hostname != nil && *endpoint.Hostname == parts[0]
			if ready && named {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	return addresses, len(parts) == 2 || len(addresses) > 0
}
