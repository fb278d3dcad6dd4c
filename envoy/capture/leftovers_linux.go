// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// istioTables is the prefix of the tables that istio-iptables makes with --native-nftables.
const istioTables = "istio-proxy-"

// leftovers are rules of other kinds than our nftables, which also redirect connections.
type leftovers struct {
	// iptables has the variants with such rules, and whether this program made them.
	iptables map[string]bool
	native   []*nftables.Table
}

func (l leftovers) String() string {
	var kinds []string
	for _, variant := range []string{iptablesNFT, iptablesLegacy} {
		if _, left := l.iptables[variant]; left {
			kinds = append(kinds, "iptables-"+variant)
		}
	}
	for _, t := range l.native {
		kinds = append(kinds, "the table "+t.Name+" of nftables")
	}
	return strings.Join(kinds, ", ")
}

// findLeftovers looks for the chains and tables, without any program.
func findLeftovers() (leftovers, error) {
	found := leftovers{iptables: map[string]bool{}}
	c, err := nftables.New()
	if err != nil {
		return found, explain(fmt.Errorf("opening netlink: %w", err))
	}
	chains, err := c.ListChains()
	if err != nil {
		return found, explain(fmt.Errorf("listing the chains of nftables: %w", err))
	}
	for _, chain := range chains {
		if isLeftChain(chain.Name) {
			found.iptables[iptablesNFT] = found.iptables[iptablesNFT] || strings.HasPrefix(chain.Name, chainPrefixOwn)
		}
	}
	tables, err := c.ListTables()
	if err != nil {
		return found, err
	}
	for _, t := range tables {
		if strings.HasPrefix(t.Name, istioTables) {
			found.native = append(found.native, t)
		}
	}
	for _, six := range []bool{false, true} {
		left, own, err := inLegacy(six)
		if err != nil {
			return found, err
		}
		if left {
			found.iptables[iptablesLegacy] = found.iptables[iptablesLegacy] || own
		}
	}
	return found, nil
}

// removeNative removes the tables of nftables.
func (l leftovers) removeNative() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	for _, t := range l.native {
		c.DelTable(t)
	}
	return c.Flush()
}

// The options of a socket that read the tables of iptables-legacy, and the sizes of their headers.
const (
	optionInfo    = 64
	optionEntries = 65
	infoBytes     = 84
	headerBytes   = 40
	nameBytes     = 32
	maxTable      = 16 << 20
)

// inLegacy reports whether a table of iptables-legacy has one of the chains, and whether one was made
// by this program.
func inLegacy(six bool) (left, own bool, err error) {
	file, family, level := "ip_tables_names", unix.AF_INET, unix.SOL_IP
	if six {
		file, family, level = "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6
	}
	// Reading a table that is not in this list would create it.
	names, err := os.ReadFile("/proc/thread-self/net/" + file)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return false, false, nil
	} else if err != nil {
		return false, false, err
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, false, fmt.Errorf("reading the tables of iptables: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // only read
	for _, name := range strings.Fields(string(names)) {
		info := make([]byte, infoBytes)
		copy(info[:nameBytes-1], name)
		if err := readOption(fd, level, optionInfo, info); err != nil {
			return false, false, explain(fmt.Errorf("reading the table %s of iptables: %w", name, err))
		}
		size := binary.NativeEndian.Uint32(info[infoBytes-4:])
		if size > maxTable {
			continue
		}
		entries := make([]byte, headerBytes+int(size))
		copy(entries[:nameBytes-1], name)
		binary.NativeEndian.PutUint32(entries[nameBytes:], size)
		if err := readOption(fd, level, optionEntries, entries); err != nil {
			continue // it changed in between
		}
		own = own || bytes.Contains(entries, []byte(chainPrefixOwn))
		left = left || own || bytes.Contains(entries, []byte(chainPrefixIstio))
	}
	return left, own, nil
}

// readOption reads an option of a socket whose value says what to read.
func readOption(fd, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
