// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"errors"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// member is a field of a message: its number, and its two names in JSON.
type member struct {
	num          protowire.Number
	snake, camel string
}

// Fields of envoy.extensions.filters.http.wasm.v3.Wasm that are read or written.
var (
	wasmConfig    = member{1, "config", "config"}                              // Wasm
	failOpen      = member{5, "fail_open", "failOpen"}                         // PluginConfig
	failurePolicy = member{7, "failure_policy", "failurePolicy"}               // PluginConfig
	vmConfig      = member{3, "vm_config", "vmConfig"}                         // PluginConfig
	vmCode        = member{3, "code", "code"}                                  // VmConfig
	vmEnvironment = member{7, "environment_variables", "environmentVariables"} // VmConfig
	envKeyValues  = member{2, "key_values", "keyValues"}                       // EnvironmentVariables
	codeLocal     = member{1, "local", "local"}                                // AsyncDataSource
	codeRemote    = member{2, "remote", "remote"}                              // AsyncDataSource
	localFilename = member{1, "filename", "filename"}                          // DataSource
	remoteURI     = member{1, "http_uri", "httpUri"}                           // RemoteDataSource
	remoteSHA256  = member{2, "sha256", "sha256"}                              // RemoteDataSource
	uriURI        = member{1, "uri", "uri"}                                    // HttpUri
	uriTimeout    = member{3, "timeout", "timeout"}                            // HttpUri
)

// policyFailOpen is the value FAIL_OPEN of FailurePolicy.
const policyFailOpen = 3

// hintPrefix is the prefix of environment variables that are intended for the agent.
const hintPrefix = "ISTIO_META_"

// value is the value of a field. The member that matches the type of the field is set.
type value struct {
	ok      bool
	message []byte
	text    string
	number  float64
	truth   bool
}

// encoding is one of two encodings of a plugin: as its own message type, or as a
// google.protobuf.Struct, which is its JSON form.
type encoding interface {
	get(b []byte, m member) (value, error)
	// set writes a message, or a string if text is true; nil removes the field.
	set(b []byte, m member, data []byte, text bool) ([]byte, error)
	duration(v value) (time.Duration, error)
	// pairs decodes a map of strings. It returns the map without the keys that begin with prefix,
	// and those keys.
	pairs(b []byte, m member, prefix string) (rest []byte, taken map[string]string, left int, err error)
}

// plugin is the configuration of a Wasm filter.
type plugin struct {
	local    bool   // the code is not remote
	file     string // path, if the code is a local file
	uri      string
	sha256   string
	timeout  time.Duration
	failOpen bool
	hints    map[string]string // from the control plane for the agent
}

var errNoCode = errors.New("neither remote nor local code is set; the plugin needs one of them")

// readPlugin decodes a filter's configuration. If it returns an error, failOpen is still set if it
// could be decoded.
func readPlugin(enc encoding, b []byte) (plugin, error) {
	var p plugin
	config, err := enc.get(b, wasmConfig)
	if err != nil {
		return p, err
	}
	open, err := enc.get(config.message, failOpen)
	if err != nil {
		return p, err
	}
	policy, err := enc.get(config.message, failurePolicy)
	if err != nil {
		return p, err
	}
	p.failOpen = open.truth || policy.number == policyFailOpen || policy.text == "FAIL_OPEN"
	vm, err := enc.get(config.message, vmConfig)
	if err != nil {
		return p, err
	}
	if p.hints, err = readHints(enc, vm.message); err != nil {
		return p, err
	}
	code, err := enc.get(vm.message, vmCode)
	if err != nil {
		return p, err
	}
	return p, p.readCode(enc, code.message)
}

func (p *plugin) readCode(enc encoding, code []byte) error {
	local, err := enc.get(code, codeLocal)
	if err != nil {
		return err
	}
	remote, err := enc.get(code, codeRemote)
	if err != nil {
		return err
	}
	switch {
	case local.ok && remote.ok:
		return errMalformed
	case local.ok:
		p.local = true
		name, err := enc.get(local.message, localFilename)
		p.file = name.text
		return err
	case !remote.ok:
		return errNoCode
	}
	sum, err := enc.get(remote.message, remoteSHA256)
	if err != nil {
		return err
	}
	uri, err := enc.get(remote.message, remoteURI)
	if err != nil {
		return err
	}
	address, err := enc.get(uri.message, uriURI)
	if err != nil {
		return err
	}
	timeout, err := enc.get(uri.message, uriTimeout)
	if err != nil {
		return err
	}
	p.uri, p.sha256 = address.text, sum.text
	p.timeout, err = enc.duration(timeout)
	return err
}

func readHints(enc encoding, vm []byte) (map[string]string, error) {
	env, err := enc.get(vm, vmEnvironment)
	if err != nil {
		return nil, err
	}
	_, hints, _, err := enc.pairs(env.message, envKeyValues, hintPrefix)
	return hints, err
}

// writePlugin returns the configuration without the agent's hints. If filename is not empty, it
// replaces the code.
func writePlugin(enc encoding, b []byte, filename string) ([]byte, error) {
	config, err := enc.get(b, wasmConfig)
	if err != nil {
		return nil, err
	}
	vm, err := enc.get(config.message, vmConfig)
	if err != nil {
		return nil, err
	}
	machine := vm.message
	if filename != "" {
		local, err := enc.set(nil, localFilename, []byte(filename), true)
		if err != nil {
			return nil, err
		}
		code, err := enc.set(nil, codeLocal, local, false)
		if err != nil {
			return nil, err
		}
		if machine, err = enc.set(machine, vmCode, code, false); err != nil {
			return nil, err
		}
	}
	if machine, err = dropHints(enc, machine); err != nil {
		return nil, err
	}
	plugin, err := enc.set(config.message, vmConfig, machine, false)
	if err != nil {
		return nil, err
	}
	return enc.set(b, wasmConfig, plugin, false)
}

// dropHints removes the agent's hints from a VmConfig, and the environment if it is empty then.
func dropHints(enc encoding, vm []byte) ([]byte, error) {
	env, err := enc.get(vm, vmEnvironment)
	if err != nil || !env.ok {
		return vm, err
	}
	rest, hints, left, err := enc.pairs(env.message, envKeyValues, hintPrefix)
	if err != nil || len(hints) == 0 {
		return vm, err
	}
	if left == 0 {
		rest = nil
	}
	return enc.set(vm, vmEnvironment, rest, false)
}
