// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

const (
	defaultPort   = "2379"
	defaultPrefix = "/outrigger"
)

// options is what the URL of a store says.
type options struct {
	// name is the URL; it holds no secret.
	name string
	// hosts are the members, each host:port.
	hosts []string
	// prefix stands before all keys; it begins and ends with a slash.
	prefix string
	// user and passwordFile are both set or both empty.
	user, passwordFile string
	// tls says whether etcd is spoken to over TLS.
	tls bool
	// ca, cert and key are paths of PEM files: the authorities of the
	// servers, by default those of the system, and what shows who the client
	// is. serverName is the name in the servers' certificates, by default the
	// host.
	ca, cert, key, serverName string
	policy                    tlspolicy.Policy // of TLS, which the program sets
}

// parse reads
// etcd://[user@]host[:2379][,host[:2379]...][/prefix][?ca=&cert=&key=&servername=&tls=&passwordFile=].
// Its errors never hold a password.
func parse(u *url.URL) (options, error) {
	o := options{name: u.Redacted()}
	fail := func(format string, args ...any) (options, error) {
		return options{}, fmt.Errorf("config source %q %s", u.Redacted(), fmt.Sprintf(format, args...))
	}
	if _, ok := u.User.Password(); ok {
		return fail("contains a password, and URLs are logged: write the password to a file and name it, etcd://%s@%s%s?passwordFile=/path", u.User.Username(), u.Host, u.Path)
	}
	if u.Fragment != "" {
		return fail("ends with #%s, which has no meaning: remove it", u.Fragment)
	}
	o.user = u.User.Username()
	for address := range strings.SplitSeq(u.Host, ",") {
		host, err := member(address)
		if err != nil {
			return fail("%v", err)
		}
		o.hosts = append(o.hosts, host)
	}
	var err error
	if o.prefix, err = keyPrefix(u.Path); err != nil {
		return fail("%v", err)
	}
	if err = o.parseQuery(u.RawQuery); err != nil {
		return fail("%v", err)
	}
	return o, nil
}

// member returns host:port of one member.
func member(address string) (string, error) {
	if address == "" {
		return "", fmt.Errorf("names no host, or an empty one: write etcd://host:%s/prefix, or several hosts with commas between", defaultPort)
	}
	if ip, err := specialaddr.ParseHost(address); err == nil && (ip.Is4() || address[0] == '[') {
		return net.JoinHostPort(ip.String(), defaultPort), nil
	}
	if !strings.ContainsAny(address, ":[]") {
		return net.JoinHostPort(address, defaultPort), nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "", fmt.Errorf("names the member %q: write host:port", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("names the member %q: the port must be a number from 1 to 65535", address)
	}
	return net.JoinHostPort(host, port), nil
}

// keyPrefix returns the prefix of the keys.
func keyPrefix(path string) (string, error) {
	path = strings.TrimSuffix(path, "/")
	if path == "" {
		path = defaultPrefix
	}
	for i, part := range strings.Split(path, "/") {
		if i > 0 && (part == "" || part == "." || part == "..") {
			return "", fmt.Errorf("has the prefix %q with the part %q: write a plain path such as %s", path, part, defaultPrefix)
		}
	}
	return path + "/", nil
}

func (o *options) parseQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return fmt.Errorf("has a malformed query: %w", err)
	}
	overTLS := ""
	fields := map[string]*string{
		"ca": &o.ca, "cert": &o.cert, "key": &o.key, "servername": &o.serverName,
		"passwordFile": &o.passwordFile, "tls": &overTLS,
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		field, values := fields[name], query[name]
		switch {
		case field == nil && strings.EqualFold(name, "password"):
			return fmt.Errorf("has the parameter password: URLs are logged; write the password to a file and name it with passwordFile=")
		case field == nil:
			return fmt.Errorf("has the unknown parameter %q: the parameters are %s", name, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case len(values) > 1:
			return fmt.Errorf("has the parameter %s %d times: write it once", name, len(values))
		case values[0] == "":
			return fmt.Errorf("has the parameter %s without a value: write one, or remove it", name)
		}
		*field = values[0]
	}
	o.tls = overTLS == "true" || o.ca != "" || o.cert != "" || o.key != "" || o.serverName != ""
	switch {
	case overTLS != "" && overTLS != "true":
		return fmt.Errorf("has tls=%s: write tls=true, or remove it", overTLS)
	case (o.cert == "") != (o.key == ""):
		return fmt.Errorf("has only one of cert= and key=: a client certificate needs both")
	case o.user == "" && o.passwordFile != "":
		return fmt.Errorf("has passwordFile= but no user: write etcd://user@host")
	case o.user != "" && o.passwordFile == "":
		return fmt.Errorf("names the user %q but no password: write the password to a file and name it with passwordFile=", o.user)
	}
	return nil
}

// endpoints are the members as etcd's client wants them.
func (o options) endpoints() []string {
	scheme := "http://"
	if o.tls {
		scheme = "https://"
	}
	all := make([]string, len(o.hosts))
	for i, host := range o.hosts {
		all[i] = scheme + host
	}
	return all
}

// place says where a person finds a key.
func (o options) place(path string) string {
	return "etcd://" + strings.Join(o.hosts, ",") + o.prefix + path
}
