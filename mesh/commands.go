// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/memkey"
)

// Grace periods of processes. All processes except the control plane terminate at the same time;
// the whole shutdown takes less than ten seconds.
const (
	graceWorkload = 6 * time.Second
	graceControl  = 2 * time.Second
)

// controlCommand returns the command of the control plane.
func (u *Mesh) controlCommand(s *state, rule string) command {
	address := u.mesh.controlAddress()
	return command{
		path: filepath.Join(u.cfg.Programs, "outrigger-control"),
		args: []string{
			"discovery",
			"--meshConfig", s.meshConfig(),
			"--registries", "",
			"--grpcAddr", "",
			"--secureGRPCAddr", hostPort(address, controlSecurePort),
			"--httpAddr", hostPort(address, controlHTTPPort),
			"--monitoringAddr", hostPort(address, controlMonitorPort),
		},
		env: u.cleanEnv(
			variable{"JWT_RULE", rule},
			variable{"OUTRIGGER_STATE_DIR", s.path("control", "ca")},
			variable{"POD_NAMESPACE", rootNamespace},
			// Issuers of tokens are on this machine, too, and its user writes the objects.
			variable{"OUTRIGGER_JWKS_ALLOWED_HOSTS", "127.0.0.0/8,::1"},
		),
		dir: s.path("control"),
	}
}

// agentCommand returns the command of a workload's agent.
func (u *Mesh) agentCommand(s *state, w *workload) (command, error) {
	settings := u.mesh.proxyConfig(u.envoyPath())
	proxyConfig, err := json.Marshal(settings)
	if err != nil {
		return command{}, fmt.Errorf("write the proxy config of %s: %w", w.name, err)
	}
	// The agent's private key is stored on disk only in encrypted form. The encryption key exists
	// only in this process and in the agent, so that a restarted agent can authenticate while the
	// control plane is unavailable.
	key, err := memkey.New()
	if err != nil {
		return command{}, fmt.Errorf("workload %q: %w", w.name, err)
	}
	return u.placeAgent(s, w, command{
		path: filepath.Join(u.cfg.Programs, "outrigger-agent"),
		args: []string{"proxy", "sidecar", "--domain", w.namespace + ".svc." + clusterDomain},
		env: u.cleanEnv(slices.Concat(metadataOf(settings), u.mesh.interception(w), []variable{
			{"POD_NAME", w.name},
			{"POD_NAMESPACE", w.namespace},
			{"INSTANCE_IP", u.mesh.addressOf(w).String()},
			{"SERVICE_ACCOUNT", w.serviceAccount},
			{"ISTIO_META_WORKLOAD_NAME", w.name},
			{"PROXY_CONFIG", string(proxyConfig)},
			{"ISTIOD_SAN", "istiod." + rootNamespace + ".svc"},
			{"TRUST_DOMAIN", u.mesh.trustDomain},
			{"OUTRIGGER_LAST_GOOD_KEY_FD", "3"}, // the first of files
			{"OUTRIGGER_ALLOW_UNSAFE_ENVOY", strconv.FormatBool(u.cfg.AllowUnsafeEnvoy)},
		})...),
		dir:   s.workload(w),
		files: []*os.File{key},
	})
}

// metadataOf returns the proxyMetadata of a ProxyConfig, sorted by name. As in injected pods, it is part
// of the environment of agent and Envoy.
func metadataOf(proxyConfig map[string]any) (out []variable) {
	metadata, _ := proxyConfig["proxyMetadata"].(map[string]any)
	for _, name := range sortedKeys(metadata) {
		out = append(out, variable{name, fmt.Sprint(metadata[name])})
	}
	return out
}

// appCommand returns the command of a workload's application. It runs in the caller's environment,
// with the variables of the mesh added.
func (u *Mesh) appCommand(s *state, w *workload) (command, error) {
	argv := u.mesh.argv(w)
	program, err := resolve(u.mesh.dir(), argv[0])
	if err != nil {
		return command{}, fmt.Errorf("workload %q: command: %w", w.name, err)
	}
	c := command{path: program, args: argv[1:], dir: w.dir}
	own, err := u.placeApp(s, w, &c)
	if err != nil {
		return command{}, err
	}
	env := u.cfg.Environ
	for _, v := range slices.Concat(own, u.mesh.environment(w), []variable{{markVariable, s.dir}}) {
		env = append(env[:len(env):len(env)], v.name+"="+v.value) // the last of two duplicates wins
	}
	c.env = env
	return c, nil
}

// cleanEnv returns the environment of Outrigger's own programs. It includes only PATH, TMPDIR and
// COMPLIANCE_POLICY of the caller, so that the same mesh file results in the same mesh for every
// user.
func (u *Mesh) cleanEnv(vars ...variable) []string {
	var env []string
	for _, v := range u.cfg.Environ {
		if name, _, _ := strings.Cut(v, "="); name == "PATH" || name == "TMPDIR" || name == "COMPLIANCE_POLICY" {
			env = append(env, v)
		}
	}
	for _, v := range vars {
		env = append(env, v.name+"="+v.value)
	}
	return env
}
