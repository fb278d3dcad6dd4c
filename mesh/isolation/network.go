// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns"
)

const (
	bridgeName = "mesh"
	linkName   = "eth0"
	// hubPort is where the hub accepts redirected connections.
	hubPort = "15006"
	dnsPort = "53"
)

// Config configures a Network.
type Config struct {
	// Outside is the loopback network of the machine whose addresses lead to the workloads. Its
	// first address belongs to the hub.
	Outside netip.Prefix
	// Workloads maps names to addresses of Outside.
	Workloads map[string]netip.Addr
	// Control maps ports of the hub to addresses of the machine, in addition to those of 127.0.0.1.
	Control map[uint16]netip.AddrPort
	// Dir is a directory that only root writes to. Processes in a [Place] see the files in it that
	// are for them, at other paths.
	Dir string
	// Search are the domains that resolvers append to names, by workload.
	Search map[string][]string
}

// Network is the network of a mesh.
type Network struct {
	cfg       Config
	inside    netip.Prefix
	hub       namespace
	workloads map[string]namespace
	ids       map[string]int // users and groups of agents, by workload
	egress    *net.TCPListener
	sockets   []dns.Socket // of dns
	dns       *dns.Server
	relays    relays
}

// New creates the namespaces. Close or Run releases them.
func New(ctx context.Context, cfg Config) (n *Network, err error) {
	n = &Network{cfg: cfg, inside: inside(cfg.Outside, routes()), workloads: map[string]namespace{}}
	addresses := map[string]netip.Addr{}
	for name, address := range cfg.Workloads {
		addresses[name] = n.Inside(address)
	}
	n.relays = newRelays(addresses)
	if most := lastID - firstID + 1; len(cfg.Workloads) > most {
		return nil, fmt.Errorf("%d workloads need a user each: network namespaces are for %d at most", len(cfg.Workloads), most)
	}
	n.ids = map[string]int{}
	for i, name := range slices.Sorted(maps.Keys(cfg.Workloads)) {
		n.ids[name] = firstID + i
	}
	if err := makePassable(n.emptyDir(), "."); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if err := n.makeNamespaces(); err != nil {
		return nil, err
	}
	if err := n.makeHub(ctx); err != nil {
		return nil, err
	}
	var group errgroup.Group
	for name, ns := range n.workloads {
		group.Go(func() error {
			if err := n.join(ctx, ns, n.Inside(cfg.Workloads[name]), n.ID(name)); err != nil {
				return fmt.Errorf("network namespace of workload %q: %w", name, err)
			}
			return n.writeView(name)
		})
	}
	return n, group.Wait()
}

// Inside returns the address in the namespaces for one of the outside.
func (n *Network) Inside(a netip.Addr) netip.Addr {
	return replace(netip.PrefixFrom(n.inside.Addr(), n.inside.Bits()), a)
}

// ID returns the user and the group of a workload's agent.
func (n *Network) ID(workload string) int { return n.ids[workload] }

// Hub returns the address at which workloads reach the machine.
func (n *Network) Hub() netip.Addr { return n.inside.Addr().Next() }

// makeNamespaces creates all namespaces at once, because the kernel takes its time for each.
func (n *Network) makeNamespaces() error {
	names := []string{""} // the hub
	for name := range n.cfg.Workloads {
		names = append(names, name)
	}
	made := make([]namespace, len(names))
	var group errgroup.Group
	for i := range made {
		group.Go(func() (err error) { made[i], err = newNamespace(); return err })
	}
	err := group.Wait()
	n.hub = made[0]
	for i, ns := range made[1:] {
		n.workloads[names[i+1]] = ns
	}
	return err
}

func (n *Network) makeHub(ctx context.Context) (err error) {
	if err := n.hub.do(n.configureHub); err != nil {
		return err
	}
	// All TCP that workloads send to other addresses is accepted, except DNS, which has a server.
	if err := redirect(ctx, n.hub, firstID, "-b", "*", "-d", dnsPort, "-z", hubPort); err != nil {
		return err
	}
	err = n.hub.do(func() error {
		l, err := net.Listen("tcp4", ":"+hubPort)
		if err != nil {
			return err
		}
		n.egress = l.(*net.TCPListener)
		n.sockets, err = dns.Listen(net.JoinHostPort(n.Hub().String(), dnsPort), nil, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("listen in the network of the mesh: %w", err)
	}
	upstream, err := dns.ReadResolvConf(resolvConf)
	if err == nil {
		n.dns, err = dns.New(dns.Config{Sockets: n.sockets, Upstream: upstream, Logger: slog.New(slog.DiscardHandler)})
	}
	if err != nil {
		return err
	}
	n.dns.Update(nil) // no names of its own
	return nil
}

func (n *Network) configureHub() error {
	if err := begin(); err != nil {
		return err
	}
	// With br_netfilter, rules of IP would apply to what the bridge forwards.
	for _, name := range []string{"iptables", "ip6tables", "arptables"} {
		if err := setting("bridge/bridge-nf-call-"+name, "0"); err != nil {
			return fmt.Errorf("turn off filtering of bridged packets: %w", err)
		}
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add a bridge: %w", err)
	}
	return n.address(bridge, n.Hub())
}

// address adds the address of an interface and enables it.
func (n *Network) address(link netlink.Link, ip netip.Addr) error {
	mask := net.CIDRMask(n.inside.Bits(), 32)
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: mask}}); err != nil {
		return fmt.Errorf("add the address %s: %w", ip, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("enable an interface: %w", err)
	}
	return nil
}

// join connects a namespace to the bridge and redirects its connections to Envoy.
func (n *Network) join(ctx context.Context, ns namespace, ip netip.Addr, id int) error {
	if err := ns.do(begin); err != nil {
		return err
	}
	err := n.hub.do(func() error {
		bridge, err := netlink.LinkByName(bridgeName)
		if err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "to-" + fmt.Sprintf("%x", ip.As4()), MasterIndex: bridge.Attrs().Index},
			PeerName:  linkName, PeerNamespace: netlink.NsFd(int(ns.file.Fd())),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add a pair of interfaces: %w", err)
		}
		return netlink.LinkSetUp(veth)
	})
	if err != nil {
		return err
	}
	err = ns.do(func() error {
		link, err := netlink.LinkByName(linkName)
		if err != nil {
			return err
		}
		if err := n.address(link, ip); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: n.Hub().AsSlice()}); err != nil {
			return fmt.Errorf("add the default route: %w", err)
		}
		// Nobody else has ports here, so that none needs privileges.
		return setting("ipv4/ip_unprivileged_port_start", "0")
	})
	if err != nil {
		return err
	}
	return redirect(ctx, ns, id, "-i", "*", "-b", "*", "-d", "15090,15021,15020", "-e", "15021", "--redirect-dns", "--capture-all-dns")
}

// redirect redirects connections of a namespace, apart from those of a user and its group, as
// istio-iptables does with these flags.
func redirect(ctx context.Context, ns namespace, id int, args ...string) error {
	var f capture.Flags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Add(set)
	args = append(args, "-u", fmt.Sprint(id), "-g", fmt.Sprint(id), "--network-namespace", ns.path())
	err := set.Parse(args)
	if err == nil {
		err = f.Run(ctx, slog.New(slog.DiscardHandler), nil, nil)
	}
	if err != nil {
		return fmt.Errorf("redirect connections: %w", err)
	}
	return nil
}

// Dial connects to an address in the namespace of a workload, as a process there does that is
// neither agent nor Envoy.
func (n *Network) Dial(ctx context.Context, workload, address string) (net.Conn, error) {
	return n.workloads[workload].dial(ctx, address)
}

// Run relays until ctx is done, and releases the namespaces.
func (n *Network) Run(ctx context.Context) error {
	defer n.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.dns.Run(ctx) })
	group.Go(func() error { return n.relays.run(ctx, n.egress, n.relays.leaving, n.leave) })
	for _, p := range n.relays.published {
		mine := func(*net.TCPConn) chan struct{} { return p.slots }
		group.Go(func() error { return n.relays.run(ctx, p.listener, mine, p.dial) })
	}
	return group.Wait()
}

// leave connects to where a workload wants to go.
func (n *Network) leave(ctx context.Context, from *net.TCPConn) (net.Conn, error) {
	to, err := originalAddress(from)
	if err != nil {
		return nil, err
	}
	if to, err = n.destination(to); err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
}

// destination returns the address of the machine, or beyond, for one that a workload connects to. The
// hub stands for 127.0.0.1 of the machine, where the ports that lead back to workloads, past their
// Envoys, are refused.
func (n *Network) destination(to netip.AddrPort) (netip.AddrPort, error) {
	local := netip.AddrPortFrom(loopback, to.Port())
	control, ok := n.cfg.Control[to.Port()]
	switch {
	case to.Addr() != n.Hub() && (to.Addr().IsLoopback() || n.inside.Contains(to.Addr())):
		// A workload that chooses the interface of its socket can send this to the hub.
		return to, fmt.Errorf("%s is an address of the workload or of the mesh", to)
	case to.Addr() != n.Hub():
		return to, nil
	case ok:
		return control, nil
	case n.relays.publishes(local):
		return to, fmt.Errorf("port %d is forwarded to a workload", to.Port())
	}
	return local, nil
}

func (n *Network) close() {
	if n.egress != nil {
		_ = n.egress.Close() // Run may have closed it
	}
	for _, s := range n.sockets {
		_ = s.Close() // as above
	}
	for _, p := range n.relays.published {
		_ = p.listener.Close() // as above
	}
	for _, ns := range n.workloads {
		if ns.file != nil {
			_ = ns.file.Close() // only a handle
		}
	}
	if n.hub.file != nil {
		_ = n.hub.file.Close() // as above
	}
}

// Close releases the namespaces of a network that does not run.
func (n *Network) Close() { n.close() }

// writeView writes the files that the processes of a workload see.
func (n *Network) writeView(name string) error {
	for file, text := range view(n.Hub(), n.cfg.Search[name]) {
		path := n.viewPath(name, file)
		if err := os.MkdirAll(n.viewPath(name, ""), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o644); err != nil { // whatever the umask is
			return err
		}
	}
	return nil
}
