// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	BlackHoleCluster = "BlackHoleCluster"
	// sdsCluster is the bootstrap cluster that serves secrets.
	sdsCluster = "sds-grpc"
	// SecretIdentity and secretRoots are the secrets that the agent serves.
	SecretIdentity = "default"
	SecretRoots    = "ROOTCA"
)

// OutboundName returns the name of the cluster of a service port.
func OutboundName(port uint32, subset, host string) string {
	return "outbound|" + Number(port) + "|" + subset + "|" + host
}

// ServerName returns the SNI for mutual TLS to a service port.
func ServerName(port uint32, subset, host string) string {
	return "outbound_." + Number(port) + "_." + subset + "_." + host
}

// StatName returns a name in the names of stats. Its semicolon tells where it ends, because it may
// contain dots, which separate the parts of the name of a stat. Only some proxies read it.
func StatName(name string, delimited bool) string {
	if delimited {
		return name + ";"
	}
	return name
}

// ClusterStatName returns the name of the cluster of a service port in the names of stats, by a pattern
// of the mesh config. Target is the port of the application, 0 for outbound clusters.
func ClusterStatName(pattern string, svc *model.Service, port uint32, subset string, target uint32) string {
	short, name := svc.Hostname, ""
	if svc.Registry == model.RegistryKubernetes {
		short = svc.ShortName() + "." + svc.Namespace
	}
	for _, p := range svc.Ports {
		if p.Number == port {
			name = p.Name
		}
	}
	return strings.NewReplacer(
		"%SERVICE%", short, "%SERVICE_NAME%", svc.ShortName(), "%SERVICE_FQDN%", svc.Hostname, "%SUBSET_NAME%", subset,
		"%TARGET_PORT%", Number(target), "%SERVICE_PORT%", Number(port), "%SERVICE_PORT_NAME%", name,
	).Replace(pattern)
}

// HostPort joins a host and a port as in a URL.
func HostPort(host string, port uint32) string {
	return net.JoinHostPort(host, Number(port))
}

func Number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// IsIP reports whether an address is an IP address.
func IsIP(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Zone() == "" // Envoy rejects zones, which are local to a machine
}

// UnixPath returns the path of an address of the form "unix:///path".
func UnixPath(address string) (string, bool) {
	return strings.CutPrefix(address, "unix://")
}

// MadeFrom returns the value of the metadata with the object of a route or cluster, which Istio's tools
// print. Its kind is written with hyphens.
func MadeFrom(kind string, key model.Key) *structpb.Value {
	return structpb.NewStringValue("/apis/networking.istio.io/v1alpha3/namespaces/" + key.Namespace + "/" + kind + "/" + key.Name)
}
