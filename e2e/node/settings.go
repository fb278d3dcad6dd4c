// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import "crypto/tls"

// containerdConfig is the configuration of containerd. It does not change the OOM scores of
// processes, because lowering them requires a capability that root lacks in many containers.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pauseImage + `"
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "/usr/sbin/runc"
SystemdCgroup = false
`

// kubeletConfig is the configuration of the kubelet. The verbs are the node's address, the file of
// the authority of clients, and the address of the DNS server.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %s
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %s}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
makeIPTablesUtilChains: false
resolvConf: /etc/resolv.conf
clusterDNS: [%s]
clusterDomain: cluster.local
maxPods: 250
volumePluginDir: /var/lib/kubelet/volume-plugins
syncFrequency: 5s
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%, imagefs.inodesFree: 0%%}
imageGCHighThresholdPercent: 100
`

// kubeProxyConfig is the configuration of kube-proxy, which leaves the settings of connection
// tracking to the machine. The verbs are the kubeconfig and the range of Pods.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// podNetwork is the network of Pods: a bridge, and addresses of a range.
const podNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "pods0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "dataDir": "/run/cni"}
}]}
`

// unverified accepts any certificate: health checks of programs that sign their own.
func unverified() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// kubeletRights allows kube-apiserver to call the kubelet, for example for logs.
const kubeletRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-apiserver-kubelet}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:kubelet-api-admin"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: kube-test-server}]
`

// auditPolicy is the file with the policy of kube-apiserver's audit, and auditLog is its log: who
// requests what, of the accounts of the mesh.
const (
	auditPolicy = "/run/audit.yaml"
	auditLog    = "/run/audit.log"

	auditRules = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:istio-system"]
- level: None
`
)
