// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Flags are the flags of istio-iptables as they were given.
type Flags struct {
	set                                   *pflag.FlagSet
	outboundPort, inboundPort, tunnelPort string
	uids, gids                            string
	mode, mark, routeTable                string
	inboundPorts, excludeInbound          string
	excludeInterfaces, vmInterfaces       string
	ranges, excludeRanges                 string
	outboundPorts, excludeOutbound        string
	dns, allDNS, dropInvalid, trace       bool
	dualStack, dryRun, remove             bool
	restoreFormat, cni, force, native     bool
	reconcile, hostExec, legacy           bool
	variant                               string
	namespace                             string
	skipApply, validate                   bool
	probePort                             string
	probeTimeout                          time.Duration
}

// Add adds the flags to a set.
func (f *Flags) Add(fs *pflag.FlagSet) {
	f.set = fs
	fs.SortFlags = false
	fs.StringVarP(&f.outboundPort, "envoy-port", "p", defaultOutbound, "port of Envoy for outbound connections")
	fs.StringVarP(&f.inboundPort, "inbound-capture-port", "z", defaultInbound, "port of Envoy for inbound connections")
	fs.StringVarP(&f.tunnelPort, "inbound-tunnel-port", "e", defaultTunnel, "inbound port that is never redirected")
	f.addOwners(fs)
	fs.StringVarP(&f.mode, "istio-inbound-interception-mode", "m", "", "how inbound connections reach Envoy: REDIRECT or TPROXY")
	fs.StringVarP(&f.mark, "istio-inbound-tproxy-mark", "t", "1337", "mark of packets, with TPROXY")
	fs.StringVarP(&f.routeTable, "istio-inbound-tproxy-route-table", "r", "133", "routing table of packets with the mark, with TPROXY")
	fs.StringVarP(&f.inboundPorts, "istio-inbound-ports", "b", "", "inbound ports to capture, comma-separated; * for all, empty for none")
	fs.StringVarP(&f.excludeInbound, "istio-local-exclude-ports", "d", "", "inbound ports not to capture, if all others are")
	fs.StringVarP(&f.excludeInterfaces, "istio-exclude-interfaces", "c", "", "interfaces whose connections are not captured, comma-separated")
	fs.StringVarP(&f.ranges, "istio-service-cidr", "i", "", "outbound destinations to capture as CIDRs, comma-separated; * for all, empty for none")
	fs.StringVarP(&f.excludeRanges, "istio-service-exclude-cidr", "x", "", "outbound destinations not to capture, as CIDRs")
	fs.StringVarP(&f.outboundPorts, "istio-outbound-ports", "q", "", "outbound ports to capture for any destination")
	fs.StringVarP(&f.excludeOutbound, "istio-local-outbound-ports-exclude", "o", "", "outbound ports not to capture")
	fs.StringVarP(&f.vmInterfaces, "kube-virt-interfaces", "k", "", "interfaces of virtual machines: their connections are captured as outbound")
	f.addCommon(fs)
	fs.BoolVarP(&f.restoreFormat, "restore-format", "f", true, "print rules as input of iptables-restore; false prints iptables commands")
	fs.BoolVar(&f.trace, "iptables-trace-logging", false, "log packets of important rules to NFLOG group 1337")
	fs.BoolVar(&f.allDNS, "capture-all-dns", false, "capture DNS queries to all addresses, not only to the resolvers of the system")
	fs.BoolVar(&f.dropInvalid, "drop-invalid", false, "drop packets that belong to no connection (default: INVALID_DROP)")
	fs.BoolVar(&f.dualStack, "dual-stack", false, "also capture IPv6 if the first address is IPv4 (default: ISTIO_DUAL_STACK or ISTIO_AGENT_DUAL_STACK)")
	fs.BoolVar(&f.remove, "cleanup-only", false, "remove the rules and do nothing else")
	fs.BoolVar(&f.skipApply, "skip-rule-apply", false, "change nothing; only --run-validation has an effect")
	fs.BoolVar(&f.validate, "run-validation", false, "check that connections are redirected, as the user of the proxy; if not, exit with code 126")
	fs.StringVar(&f.probePort, "iptables-probe-port", defaultProbePort, "port of the connection that --run-validation makes")
	fs.DurationVar(&f.probeTimeout, "probe-timeout", 5*time.Second, "time that --run-validation waits")
	fs.StringVar(&f.namespace, "network-namespace", "", "file of the network namespace, such as /var/run/netns/pod (default: that of the process)")
	fs.BoolVar(&f.hostExec, "host-nsenter-exec", false, "accepted: no program is run in the network namespace")
	fs.BoolVar(&f.cni, "cni-mode", false, "accepted: the rules are the same")
	fs.StringVar(&f.variant, "force-iptables-binary", "", "set the rules with iptables instead of nftables: legacy or nft")
	fs.BoolVar(&f.legacy, "force-legacy-iptables", false, "the same as --force-iptables-binary=legacy")
	fs.BoolVar(&f.reconcile, "reconcile", false, "remove rules of istio-iptables that were set in another way, instead of a warning")
	fs.BoolVar(&f.force, "force-apply", false, "accepted: rules are always replaced in one step")
	fs.BoolVar(&f.native, "native-nftables", false, "accepted: rules are nftables by default")
}

// AddRemoval adds the flags of istio-clean-iptables to a set.
func (f *Flags) AddRemoval(fs *pflag.FlagSet) {
	f.set, f.remove = fs, true
	f.outboundPort, f.inboundPort, f.tunnelPort = defaultOutbound, defaultInbound, defaultTunnel
	f.probePort = defaultProbePort
	fs.SortFlags = false
	f.addOwners(fs)
	fs.StringVarP(&f.mode, "istio-inbound-interception-mode", "m", "", "accepted: the rules of all modes are removed")
	fs.StringVarP(&f.mark, "istio-inbound-tproxy-mark", "t", "1337", "mark of packets, with TPROXY")
	fs.StringVarP(&f.routeTable, "istio-inbound-tproxy-route-table", "r", "133", "routing table of packets with the mark, with TPROXY")
	f.addCommon(fs)
}

func (f *Flags) addOwners(fs *pflag.FlagSet) {
	fs.StringVarP(&f.uids, "proxy-uid", "u", "", "users of agent and Envoy, comma-separated (default: that of ENVOY_USER, else 1337)")
	fs.StringVarP(&f.gids, "proxy-gid", "g", "", "groups of agent and Envoy, comma-separated (default: --proxy-uid)")
}

func (f *Flags) addCommon(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.dryRun, "dry-run", "n", false, "print the rules, change nothing")
	fs.BoolVar(&f.dns, "redirect-dns", false, "capture DNS queries (default: ISTIO_META_DNS_CAPTURE)")
}

// Environment variables that have no flag.
const (
	envGroups         = "ISTIO_OUTBOUND_OWNER_GROUPS"
	envExcludeGroups  = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"
	envLoopback       = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"
	envUser           = "ENVOY_USER"
	envDryRunFile     = "DRY_RUN_FILE_PATH"
	envOldMode        = "INBOUND_INTERCEPTION_MODE"
	envOldMark        = "INBOUND_TPROXY_MARK"
	envDNSCapture     = "ISTIO_META_DNS_CAPTURE"
	envInvalidDrop    = "INVALID_DROP"
	envDualStack      = "ISTIO_DUAL_STACK"
	envAgentDualStack = "ISTIO_AGENT_DUAL_STACK"
)

// The defaults of the ports, and of the user and the group of agent and Envoy.
const (
	defaultOutbound = "15001"
	defaultInbound  = "15006"
	defaultTunnel   = "15008"
	defaultProxyID  = "1337"

	defaultProbePort = "15002"
)

// Run does what the flags say, for those that are not given the environment variables of the same
// name, such as PROXY_UID. A dry run writes the rules to out.
func (f *Flags) Run(ctx context.Context, log *slog.Logger, environ []string, out io.Writer) error {
	env := environment(environ)
	if err := f.fromEnvironment(env); err != nil {
		return err
	}
	return InNamespace(f.namespace, func() error {
		s, warnings, err := f.settings(env, thisSystem())
		for _, warning := range warnings {
			log.Warn("value ignored", "reason", warning)
		}
		if err != nil {
			return err
		}
		return s.run(ctx, log, out)
	})
}

func environment(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}

// settings checks the flags. Warnings are about values that are ignored.
func (f *Flags) settings(env map[string]string, system system) (s *Settings, warnings []string, err error) {
	r := &reader{system: system, env: env}
	s = &Settings{
		OutboundPort: r.port("--envoy-port", f.outboundPort), InboundPort: r.port("--inbound-capture-port", f.inboundPort),
		TunnelPort: r.port("--inbound-tunnel-port", f.tunnelPort),
		TProxy:     f.mode == "TPROXY", TProxyMark: r.number("--istio-inbound-tproxy-mark", f.mark),
		RouteTable:          r.number("--istio-inbound-tproxy-route-table", f.routeTable),
		ExcludeInboundPorts: r.ports("--istio-local-exclude-ports", f.excludeInbound),
		OutboundPorts:       r.ports("--istio-outbound-ports", f.outboundPorts), ExcludeOutboundPorts: r.ports("--istio-local-outbound-ports-exclude", f.excludeOutbound),
		ExcludeRanges:     r.ranges("--istio-service-exclude-cidr", f.excludeRanges),
		ExcludeInterfaces: r.interfaces("--istio-exclude-interfaces", f.excludeInterfaces), VMInterfaces: r.interfaces("--kube-virt-interfaces", f.vmInterfaces),
		ExcludeGroups: r.ids(envExcludeGroups, env[envExcludeGroups], ownerGroup),
		DNS:           f.dns, AllDNS: f.dns && f.allDNS, DropInvalid: f.dropInvalid, Trace: f.trace,
		Remove: f.remove, DryRun: f.dryRun, DryRunFile: env[envDryRunFile], RestoreFormat: f.restoreFormat,
		Variant: strings.TrimPrefix(f.variant, "iptables-"), Reconcile: f.reconcile,
		SkipApply: f.skipApply, Validate: f.validate, ProbePort: r.port("--iptables-probe-port", f.probePort), ProbeTimeout: f.probeTimeout,
	}
	if f.legacy {
		s.Variant = iptablesLegacy
	}
	if s.InboundAll = strings.TrimSpace(f.inboundPorts) == "*"; !s.InboundAll {
		s.InboundPorts = r.ports("--istio-inbound-ports", f.inboundPorts)
	}
	if s.IncludeAll = strings.TrimSpace(f.ranges) == "*"; !s.IncludeAll {
		s.IncludeRanges = r.ranges("--istio-service-cidr", f.ranges)
	}
	groups := strings.TrimSpace(env[envGroups])
	if s.GroupsAll = groups == "" || groups == "*"; !s.GroupsAll {
		s.Groups = r.ids(envGroups, groups, ownerGroup)
	} else if len(s.ExcludeGroups) == 0 {
		s.ExcludeGroups = nil
	}
	s.Loopback = r.loopback(env[envLoopback])
	r.owners(s, f)
	if !s.Remove {
		s.IPv6 = r.hasIPv6(f.dualStack)
		s.ProbeIPv6 = s.IPv6 && !f.dualStack
		if s.DNS && !s.AllDNS {
			s.Resolvers = r.resolvers()
		}
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	return s, r.warnings, s.check()
}

// fromEnvironment sets the flags that were not given.
func (f *Flags) fromEnvironment(env map[string]string) (err error) {
	other := map[string][]string{
		"redirect-dns": {envDNSCapture}, "drop-invalid": {envInvalidDrop}, "dual-stack": {envDualStack, envAgentDualStack},
	}
	if f.set.Lookup("cleanup-only") == nil {
		other["istio-inbound-interception-mode"], other["istio-inbound-tproxy-mark"] = []string{envOldMode}, []string{envOldMark}
	}
	f.set.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || err != nil {
			return
		}
		own := strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		for _, name := range append([]string{own}, other[flag.Name]...) {
			if value := env[name]; value != "" {
				if setErr := flag.Value.Set(value); setErr != nil {
					err = fmt.Errorf("the environment variable %s is %q: it must be a %s, as for --%s", name, value, flag.Value.Type(), flag.Name)
				}
				return
			}
		}
	})
	return err
}
