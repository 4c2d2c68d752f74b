// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// issue writes what an authority would hand out: service.crt, service.key and authorities.pem. A
// program that is used has its certificates from an authority of its company, or from Let's
// Encrypt.
func issue(folder string) error {
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority"},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	service := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "checkout"},
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)}, // the hosts that servers with it listen at
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	serviceKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	leaf, err := x509.CreateCertificate(rand.Reader, service, authority, &serviceKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(serviceKey)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name, kind string
		content    []byte
	}{
		{"authorities.pem", "CERTIFICATE", root},
		{"service.crt", "CERTIFICATE", leaf},
		{"service.key", "PRIVATE KEY", key},
	} {
		block := pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: file.content})
		if err := os.WriteFile(filepath.Join(folder, file.name), block, 0o600); err != nil {
			return err
		}
	}
	return nil
}
