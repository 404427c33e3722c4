// Package vm runs tests in virtual machines whose cgroups are what users have: version 2 with all controllers, made by Podplane itself
// (the cgroupfs driver) in one machine, and by systemd in the other. The tests are those of other packages, compiled and run as they are;
// they hold on hosts of either kind.
//
// The machines are QEMU's software emulation, so that they run wherever the tests do. Their clock counts instructions (-icount): a busy host
// makes them slow to the one who waits, but not to the programs inside, whose deadlines hold.
package vm
