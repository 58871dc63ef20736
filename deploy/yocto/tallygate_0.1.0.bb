# Skeleton: installs the agent from the Debian package that `npm run package` built. Needs glibc and systemd.
# The name of this file selects the version of the package. Rename the file for another version.
SUMMARY = "Token-metered access decisions on the device"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

COMPATIBLE_HOST = "(aarch64|x86_64).*-linux"
DEBIAN_ARCHITECTURE:aarch64 = "arm64"
DEBIAN_ARCHITECTURE:x86-64 = "amd64"
SRC_URI = "file://tallygate_${PV}_${DEBIAN_ARCHITECTURE}.deb;subdir=${BP}"

inherit bin_package systemd useradd

# The runtime is a program of its own, built and stripped elsewhere.
INSANE_SKIP:${PN} += "already-stripped ldflags"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_SYSROOT_STRIP = "1"
RDEPENDS:${PN} += "libatomic libstdc++ ca-certificates"

USERADD_PACKAGES = "${PN}"
USERADD_PARAM:${PN} = "--system --user-group --no-create-home --home-dir /var/lib/tallygate --shell /sbin/nologin tallygate"
SYSTEMD_SERVICE:${PN} = "tallygate-agent.socket tallygate-agent.service"

do_install:append() {
	# A device does not run the cloud service.
	find ${D} -name 'tallygate-cloud.*' -delete
	rm -rf ${D}${datadir}/doc
	# The ledger must be on the data partition, which both root file systems share. Change the path to yours.
	install -d ${D}${localstatedir}/lib
	ln -s /data/tallygate ${D}${localstatedir}/lib/tallygate
}
FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir} ${datadir}"
